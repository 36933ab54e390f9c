#!/usr/bin/env bash
# The reference's recipe: global batch size 512, learning rate 0.088 per 64 images.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=64}" "${EVAL_BS:=64}" "${EPOCHS:=300}" "${LR:=0.7}" "${WARMUP:=5}"
: "${EMA:=0.9999}" "${MOMENTUM:=0.9}" "${AMP:=True}" "${training_mode:=traineval}"
launch train
