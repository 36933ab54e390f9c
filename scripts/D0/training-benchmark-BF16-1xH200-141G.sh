#!/usr/bin/env bash
# This project's training benchmark: 500 steps in bfloat16.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=1}" "${BS:=200}" "${LR:=0.275}" "${WARMUP:=5}" "${EMA:=0.9999}" "${MOMENTUM:=0.9}" "${PRECISION:=mixed_bfloat16}"
launch benchmark_training
