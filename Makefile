# Chainscope. The two commands of the README are `make demo` and `make test`; the rest is for those who change it.
#
# Two builds with one profile: the two programs of `make demo`, without RocksDB and the client of Kubernetes, and everything
# (`--workspace --all-targets`, with RocksDB). Their dependencies have the same features (workspace-hack), so the second reuses those of
# the first. Set CARGO_TARGET_DIR to share a build directory.

SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help
CARGO ?= cargo
# Development builds of what stores records.
DEVELOPMENT = scripts/with-rocksdb $(CARGO)
BUILT = $${CARGO_TARGET_DIR:-target}/debug
RELEASE = $${CARGO_TARGET_DIR:-target}/release
OUT ?= $${CARGO_TARGET_DIR:-target}/images
OLDER ?= $${CARGO_TARGET_DIR:-target}/older
# Cargo runs as the user, and only the tests that it runs as root: no build artifacts of root are left.
test e2e e2e-long soak bench: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER = $(CURDIR)/scripts/as-root
comma := ,
say = @echo "==> $(1)"
DEMO = -p chainscope-cli -p chainscope-demo-node --no-default-features --features chainscope-cli/workspace-hack

.PHONY: help setup build demo test e2e older e2e-long cluster images lint bench bench-quick soak fuzz openapi clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install system packages and mount the kernel's tracing file systems (Debian 12; root or sudo)
	@scripts/setup

build: setup ## build every program and test
	$(call say,Building every program and test; from nothing about 500 crates and RocksDB: 15 to 35 minutes on two cores)
	$(DEVELOPMENT) build --workspace --all-targets

demo: ## record a demo node, show its decoded messages, its log and which code holds its memory
	@scripts/setup demo
	$(call say,Building two programs; from nothing about 380 crates: 5 to 15 minutes on two cores)
	$(CARGO) build $(DEMO)
	$(call say,Starting the demo as root$(comma) which loading eBPF programs needs; its first lines take some seconds)
	scripts/as-root $(BUILT)/chainscope demo

test: build ## run every test: unit, property, kernel (as root), API, end to end
	$(call say,Running every test as root: 15 to 30 minutes on two cores; a failure stops here and is printed last)
	$(DEVELOPMENT) test --workspace
	@# Again with the fallback for kernels before 6.3: the tests that depend on how bytes are captured.
	$(call say,Running the tests of capturing again$(comma) with the fallback for kernels before 6.3)
	CHAINSCOPE_CAPTURE=syscall $(DEVELOPMENT) test --workspace \
	  --test kernel --test half_open --test capture

# With CHAINSCOPE_IMAGES, the absolute path of the directory of `make images`, the cluster runs these release images.
e2e: build ## check the chart and run scenarios on a real Kubernetes cluster (needs Go 1.26; builds Kubernetes once, about 8 minutes)
	scripts/setup-cluster
	scripts/kubernetes-tools
	charts/check
	@# Two scenarios at a time: mostly they wait.
	$(DEVELOPMENT) test --workspace --test cluster -- --test-threads 2 --show-output
	$(DEVELOPMENT) test --workspace --test cluster_alone -- --test-threads 1 --show-output

# The programs of an older release are built first: they replace those of this checkout until it is built again.
older: setup
	scripts/older-release "$(OLDER)"

e2e-long: older build images ## on a cluster: release images, also on two hosts, an upgrade from an older release, every program at its memory limit (two builds, then 15 minutes)
	scripts/setup-cluster
	scripts/kubernetes-tools
	CHAINSCOPE_IMAGES=$$(realpath $(OUT)) $(DEVELOPMENT) test --workspace --test cluster -- messages:: hosts:: --test-threads 2 --show-output
	CHAINSCOPE_OLDER=$$(realpath "$(OLDER)") CHAINSCOPE_IMAGES=$$(realpath $(OUT)) $(DEVELOPMENT) test --workspace --no-fail-fast \
	  --test 'long_cluster*' -- --test-threads 1 --show-output

cluster: build ## run a Kubernetes cluster with the chart on this machine until Ctrl-C (HOSTS=1)
	scripts/setup-cluster
	scripts/kubernetes-tools
	scripts/as-root $(BUILT)/chainscope-cluster up --hosts $${HOSTS:-1}

images: setup ## write release images as OCI archives, with SBOMs, without a container engine (OUT=target/images, REGISTRY=localhost)
	$(call say,Building the programs in release mode; from nothing 20 to 60 minutes on two cores)
	$(CARGO) build --locked --release -p chainscope-agent -p chainscope-operator -p chainscope-aggregator -p chainscope-cli \
	  -p chainscope-demo-node -p chainscope-images
	scripts/images $(RELEASE) $(OUT)

lint: setup ## check format, clippy, features, licences and sources of the dependencies, the release workflow (needs Go 1.26)
	$(CARGO) fmt --all --check
	$(DEVELOPMENT) clippy --workspace --all-targets -- -D warnings
	@# The scenarios on a cluster have `test = false`, so --all-targets leaves them out.
	$(DEVELOPMENT) clippy --workspace --test 'cluster*' --test 'long_cluster*' -- -D warnings
	@# The fuzz targets are a workspace of their own: its lock file follows the dependencies of the crates.
	$(CARGO) tree --locked --manifest-path fuzz/Cargo.toml >/dev/null
	scripts/shared-units
	scripts/tool cargo-deny 0.20.2
	PATH="$$(scripts/tool --bin):$$PATH" cargo deny --offline check bans licenses sources
	"$$(scripts/go-tool actionlint github.com/rhysd/actionlint/cmd/actionlint@v1.7.12)" -shellcheck= -pyflakes= .github/workflows/*.yml

bench: build ## measure ratios to the physical limit and to other tools (docs/benchmarks.md)
	scripts/setup-bench
	scripts/bench

# SLACK is a factor on what is allowed. UPDATE_RATIOS=1 adds a run to the recorded ratios, UPDATE_RATIOS=new begins them anew.
bench-quick: build ## check that short benchmarks are not slower than recorded (bench/quick), as ratios: at most 5 minutes
	$(BUILT)/examples/ratio_gate bench/quick --slack=$${SLACK:-1.0} -- scripts/bench-quick

soak: build ## run the long tests: 2 GB over 16 connections, 50 kills, memory at 5,000 messages/s, memory trees for 10 minutes, PostgreSQL
	scripts/setup-soak
	CHAINSCOPE_SOAK=1 $(DEVELOPMENT) test --workspace --no-fail-fast --test 'soak*' -- --nocapture --test-threads 1

fuzz: setup ## fuzz every parser, FUZZ_SECONDS (300) each, FUZZ_JOBS (1) at a time
	scripts/tool cargo-fuzz 0.13.2
	PATH="$$(scripts/tool --bin):$$PATH" fuzz/run.sh $${FUZZ_SECONDS:-300}

openapi: ## update the committed OpenAPI documents
	UPDATE_GOLDEN=1 $(DEVELOPMENT) test -p chainscope-aggregator --test suite openapi

clean: ## remove build artifacts
	$(CARGO) clean
