#!/usr/bin/env bash
# This project's evaluation in bfloat16. CKPT= names the checkpoint.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=200}" "${EMA:=0.999}" "${PRECISION:=mixed_bfloat16}"
launch evaluate
