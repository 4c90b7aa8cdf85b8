#!/usr/bin/env bash
# Runs every fuzz target for a while, from a corpus of captured packets.
#
#   fuzz/run.sh [seconds-per-target (60)] [target…]
#
# Targets run side by side, as many as there are CPUs. Findings stay in fuzz/artifacts/<target>/, and
# what libFuzzer learns in fuzz/corpus/<target>/. Exit status 1 if any target found something.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
case "$seconds" in
    '' | *[!0-9]*) echo "usage: fuzz/run.sh [seconds-per-target] [target...]" >&2; exit 2 ;;
esac

if ! cargo fuzz --version >/dev/null 2>&1; then
    echo "installing cargo-fuzz"
    cargo install cargo-fuzz --locked
fi

seeds=$(mktemp -d)
trap 'rm -rf "$seeds"' EXIT
: >"$seeds/begun"
cargo run --quiet -p polypath-wire --example pcap_corpus -- "$seeds" crates/wire/tests/vectors/*.pcap

# The sanitizer's flags are unstable; this lets the stable compiler take them.
export RUSTC_BOOTSTRAP=1
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cargo fuzz list); fi

cargo fuzz build

one() {
    local target=$1 log="$seeds/$1.log" dirs
    dirs=("fuzz/corpus/$target")
    mkdir -p "${dirs[0]}"
    # Seeds from captures, and those that a target keeps in the repository.
    for dir in "$seeds/$target" "fuzz/seeds/$target"; do
        [ -d "$dir" ] && dirs+=("$dir")
    done
    if cargo fuzz run "$target" "${dirs[@]}" -- -max_total_time="$seconds" -max_len=4200 \
        -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 >"$log" 2>&1; then
        printf '%-20s ok      %s runs\n' "$target" \
            "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")"
    else
        printf '%-20s FAILED\n' "$target"
        # What was found and where, and the input; cargo-fuzz's own advice follows and says less.
        grep -A 40 -m 1 -E 'ERROR|panicked|ALARM' "$log" | sed "s/^/    /" || tail -n 40 "$log"
        find "fuzz/artifacts/$target" -type f -newer "$seeds/begun" -size -64k -printf '    %f: ' \
            -exec base64 -w 0 {} \; -printf '\n'
        return 1
    fi
}

failed=0
running=0
for target in "${targets[@]}"; do
    if [ "$running" -ge "$(nproc)" ]; then
        wait -n || failed=1
        running=$((running - 1))
    fi
    one "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
    wait -n || failed=1
    running=$((running - 1))
done
exit "$failed"
