#!/usr/bin/env bash
# This project's recipe under JAX in bfloat16: one process with eight GPUs, the global batch size (1,600) and learning rate of the
# reference's 8xA100 recipe. Batch norm sees the global batch.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${ENGINE:=jax}" "${NGPU:=8}" "${BS:=200}" "${EVAL_BS:=200}" "${EPOCHS:=400}" "${LR:=2.2}" "${WARMUP:=25}"
: "${EMA:=0.999}" "${MOMENTUM:=0.93}" "${PRECISION:=mixed_bfloat16}" "${training_mode:=traineval}"
launch train
