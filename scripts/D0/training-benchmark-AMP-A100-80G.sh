#!/usr/bin/env bash
# The reference's training benchmark: 500 steps, no evaluation; NGPU= for fewer GPUs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=200}" "${LR:=2.2}" "${WARMUP:=25}" "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=True}"
launch benchmark_training
