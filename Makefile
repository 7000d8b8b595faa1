# Chainscope. The two commands of the README are `make demo` and `make test`; the rest is for those who change it.
#
# Everything is built with one profile and one set of features (`--workspace --all-targets`), so that RocksDB, which takes
# minutes, is compiled once. Set CARGO_TARGET_DIR to share a build folder.

SHELL := /bin/bash -euo pipefail
.DEFAULT_GOAL := help
CARGO ?= cargo
BUILT = $${CARGO_TARGET_DIR:-target}/debug

.PHONY: help setup build demo test e2e cluster images lint bench soak fuzz openapi clean

help: ## list the targets
	@grep -E '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: ## install the system packages and mount what the kernel tests need (Debian 12; root or sudo)
	@scripts/setup

build: setup ## build every program and test
	$(CARGO) build --workspace --all-targets

demo: build ## record a demo node, show its decoded messages and which code holds its memory
	scripts/as-root $(BUILT)/chainscope demo

test: build ## every test there is: unit, property, kernel (as root), API, end to end
	scripts/as-root $(CARGO) test --workspace
	@# The same for the fallback of kernels before 6.3, of what captures in one way at a time.
	scripts/as-root env CHAINSCOPE_CAPTURE=syscall $(CARGO) test --workspace \
	  --test kernel --test half_open --test lives --test dropped_record --test bad_input --test secrets

e2e: build ## checks of the chart, and scenarios on a real Kubernetes cluster (needs Go 1.26; builds Kubernetes once, about 8 minutes)
	scripts/setup-cluster
	scripts/kubernetes-tools
	charts/check
	scripts/as-root $(CARGO) test --workspace --no-fail-fast --test 'cluster*' -- --test-threads 1 --show-output

cluster: build ## a Kubernetes cluster on this machine with the chart installed, until Ctrl-C (HOSTS=1)
	scripts/setup-cluster
	scripts/kubernetes-tools
	scripts/as-root $(BUILT)/chainscope-cluster up --hosts $${HOSTS:-1}

images: build ## the images of the chart as OCI archives, without a container engine (OUT=target/images)
	scripts/setup-cluster
	$(BUILT)/chainscope-cluster images --out $${OUT:-$${CARGO_TARGET_DIR:-target}/images}

lint: setup ## format, clippy, licences and sources of the dependencies
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@# Scenarios that make test leaves out are no targets of all-targets.
	$(CARGO) clippy --workspace --test 'cluster*' -- -D warnings
	scripts/tool cargo-deny 0.20.2
	PATH="$$(scripts/tool --bin):$$PATH" cargo deny --offline check bans licenses sources

bench: build ## ratios against the physical limit and other tools, as a table (docs/benchmarks.md)
	scripts/as-root scripts/bench

soak: build ## the long runs: 2 GB over 16 connections, 50 kills, memory at 5,000 messages/s, memory trees for 10 minutes, PostgreSQL
	scripts/setup-soak
	scripts/as-root env CHAINSCOPE_SOAK=1 $(CARGO) test --workspace --no-fail-fast --test 'soak*' -- --nocapture --test-threads 1

fuzz: setup ## every parser, FUZZ_SECONDS (300) each
	scripts/tool cargo-fuzz 0.13.2
	PATH="$$(scripts/tool --bin):$$PATH" fuzz/run.sh $${FUZZ_SECONDS:-300}

openapi: ## write the committed OpenAPI documents anew
	UPDATE_GOLDEN=1 $(CARGO) test -p chainscope-aggregator --test suite openapi

clean: ## remove what was built
	$(CARGO) clean
