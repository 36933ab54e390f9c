#!/usr/bin/env bash
# The reference's training benchmark: 500 steps, no evaluation; NGPU= for fewer GPUs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=104}" "${LR:=1.1}" "${WARMUP:=25}" "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=False}"
export TF_GPU_HOST_MEM_LIMIT_IN_MB=131072
launch benchmark_training
