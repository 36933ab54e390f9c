#!/usr/bin/env bash
# The reference's recipe: a global batch of 1,600, 0.088 for 64 images; the cosine of 400 epochs is cut at 300.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=200}" "${EVAL_BS:=10}" "${EPOCHS:=400}" "${LR:=2.2}" "${WARMUP:=25}"
: "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=True}" "${training_mode:=traineval}"
launch train
