#!/usr/bin/env bash
# The reference's inference benchmark; BS=1,2,4,8 runs one size after the other.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${MODEL_DIR:=/tmp/inference-benchmark}"
for size in $(tr ',' ' ' <<<"${BS:-8}"); do
    (BS="$size" && launch inspect --dllogger_path="$MODEL_DIR/infer-benchmark.log")
done
