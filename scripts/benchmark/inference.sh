#!/usr/bin/env bash
# Time the inference of any model with random weights: bash scripts/benchmark/inference.sh MODEL=retinanet-resnet18 BS=2 --output_json=FILE
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${BS:=1}" "${MODEL_DIR:=${checkpointdir:-/tmp}/benchmark-inference}"
launch inspect --dllogger_path="$MODEL_DIR/infer-benchmark.log"
