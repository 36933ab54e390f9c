#!/usr/bin/env bash
# This project's recipe in bfloat16: global batch size 200, the learning rate of the 8xA100 recipe (0.088 per 64 images).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=1}" "${BS:=200}" "${EVAL_BS:=200}" "${EPOCHS:=300}" "${LR:=0.275}" "${WARMUP:=5}"
: "${EMA:=0.9999}" "${MOMENTUM:=0.9}" "${PRECISION:=mixed_bfloat16}" "${training_mode:=traineval}"
launch train
