#!/usr/bin/env bash
# The reference's training benchmark: 500 steps, no evaluation; NGPU= for fewer GPUs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=40}" "${LR:=0.4}" "${WARMUP:=5}" "${EMA:=0.9999}" "${MOMENTUM:=0.9}" "${AMP:=False}"
launch benchmark_training
