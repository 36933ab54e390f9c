#!/usr/bin/env bash
# The reference's recipe: global batch size 832, learning rate 0.085 per 64 images; a cosine schedule of 400 epochs, stopped at 300.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=104}" "${EVAL_BS:=104}" "${EPOCHS:=400}" "${LR:=1.1}" "${WARMUP:=25}"
: "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=False}" "${training_mode:=train}"
launch train
