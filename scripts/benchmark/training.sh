#!/usr/bin/env bash
# Time training steps of any model at its own learning rate: bash scripts/benchmark/training.sh MODEL=retinanet-resnet18 DATA=... BS=2
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${BS:=8}" "${STEPS:=300}"
launch benchmark_training
