#!/usr/bin/env bash
# The reference's inference benchmark. BS=1,2,4,8 runs one batch size after the other and prints a table of all of them beside the
# reference's figures for an A100.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${MODEL_DIR:=${checkpointdir:-/tmp}/inference-benchmark}"
reports=()
IFS=, read -r -a sizes <<<"${BS:-8}"
((${#sizes[@]})) || fail "BS=$BS; expected one batch size or several, separated by commas"
for size in "${sizes[@]}"; do
    _check_value BS "$size" count # all of them, before the first one runs
done
for size in "${sizes[@]}"; do
    reports+=("$MODEL_DIR/batch-$size.json")
    (BS="$size" && launch inspect --dllogger_path="$MODEL_DIR/infer-benchmark.log" --output_json="$MODEL_DIR/batch-$size.json")
done
[[ -n "$dry_run" ]] || "${PYTHON:-$ROOT/.venv/bin/python}" "$ROOT/benchmarks/inference_table.py" "${reports[@]}"
