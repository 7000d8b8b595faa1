#!/usr/bin/env bash
# Runs every fuzz target for so many seconds each (default 300) and prints how many inputs it tried. Fails on the first finding.
#
# cargo-fuzz without a sanitizer: the code has no unsafe blocks, and the stable compiler builds it. The coverage passes of libFuzzer
# are reached through the compiler's bootstrap switch, which is set for fuzzing only.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-300}
targets=(identity handshake message chunks opening conversation resume unwind)

export RUSTC_BOOTSTRAP=1
# Seeds are made, not kept: they follow the vectors.
cargo run --quiet --release --example make_seeds -- ../vectors corpus
cargo fuzz build --sanitizer none

printf '| target | seconds | executions | corpus |\n| --- | ---: | ---: | ---: |\n'
for target in "${targets[@]}"; do
    log=$(mktemp)
    # These two read an input as steps of 4 bytes: long ones only do the same again.
    case $target in conversation | resume) longest=512 ;; *) longest=65536 ;; esac
    if ! cargo fuzz run --sanitizer none "$target" -- \
        -max_total_time="$seconds" -max_len="$longest" -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 >"$log" 2>&1; then
        cat "$log"
        echo "fuzz: $target has a finding; the input is in fuzz/artifacts/$target" >&2
        exit 1
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '| %s | %s | %s | %s |\n' "$target" "$seconds" "$executions" "$(find "corpus/$target" -type f | wc -l)"
    rm -f "$log"
done
