#!/usr/bin/env bash
# This project's training benchmark: 500 steps in bfloat16.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=200}" "${LR:=2.2}" "${WARMUP:=25}" "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${PRECISION:=mixed_bfloat16}"
launch benchmark_training
