#!/usr/bin/env bash
# The reference's recipe: global batch size 320, learning rate 0.080 per 64 images.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=40}" "${EVAL_BS:=40}" "${EPOCHS:=300}" "${LR:=0.4}" "${WARMUP:=5}"
: "${EMA:=0.9999}" "${MOMENTUM:=0.9}" "${AMP:=False}" "${training_mode:=traineval}"
launch train
