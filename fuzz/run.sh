#!/usr/bin/env bash
# Runs every fuzz target for the given number of seconds each (default 300) and prints the number of executions. Fails if one of them has
# a finding. FUZZ_JOBS targets run at a time (default 1). An input that takes more than 10 s of a processor is a finding.
#
# cargo-fuzz runs without a sanitizer, because the crates have no unsafe code. RUSTC_BOOTSTRAP enables the coverage instrumentation of
# libFuzzer on the stable compiler; it is set for fuzzing only.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-300}
targets=(identity handshake message chunks opening conversation resume unwind functions
    spool_segment spool_recovery journal symbols profile config ingest query log_message
    syslog_frames container_lines tracepoints contract recording message_content)

# libFuzzer measures the time that passes, and the targets share the processors.
cpus=$(nproc)
export timeout=$((10 * ((${FUZZ_JOBS:-1} + cpus - 1) / cpus)))
export RUSTC_BOOTSTRAP=1
# Seeds are generated from the vectors, not committed.
cargo run --quiet --release --example make_seeds -- ../vectors corpus
cargo fuzz build --sanitizer none

printf '| target | seconds | executions | corpus |\n| --- | ---: | ---: | ---: |\n'
fuzz() {
    local target=$1 log max_len executions
    log=$(mktemp)
    # These targets interpret an input as steps of 4 bytes, or as a query string: longer inputs add no coverage.
    case $target in conversation | resume | spool_recovery) max_len=512 ;; query) max_len=4096 ;; *) max_len=65536 ;; esac
    if ! cargo fuzz run --sanitizer none "$target" -- \
        -max_total_time="$seconds" -max_len="$max_len" -rss_limit_mb=1024 -timeout="$timeout" -print_final_stats=1 >"$log" 2>&1; then
        cat "$log"
        echo "fuzz: $target has a finding; the input is in fuzz/artifacts/$target" >&2
        # Ends xargs.
        exit 255
    fi
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '| %s | %s | %s | %s |\n' "$target" "$seconds" "$executions" "$(find "corpus/$target" -type f | wc -l)"
    rm -f "$log"
}
export -f fuzz
export seconds
printf '%s\n' "${targets[@]}" | xargs -P "${FUZZ_JOBS:-1}" -I '{}' bash -euo pipefail -c 'fuzz {}'
