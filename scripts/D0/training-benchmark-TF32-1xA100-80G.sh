#!/usr/bin/env bash
# The reference's training benchmark on one GPU: 500 steps, no evaluation, input in one thread.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=1}" "${BS:=104}" "${LR:=1.1}" "${WARMUP:=25}" "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=False}"
: "${MODEL_DIR:=${checkpointdir:-/tmp}/training-benchmark-1xTF32-A100-80G}"
launch benchmark_training --enable_map_parallelization=False
