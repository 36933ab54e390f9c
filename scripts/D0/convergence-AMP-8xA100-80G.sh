#!/usr/bin/env bash
# The reference's recipe: global batch size 1,600, learning rate 0.088 per 64 images; a cosine schedule of 400 epochs, stopped at 300.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=200}" "${EVAL_BS:=10}" "${EPOCHS:=400}" "${LR:=2.2}" "${WARMUP:=25}"
: "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${AMP:=True}" "${training_mode:=traineval}"
launch train
