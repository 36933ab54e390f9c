#!/usr/bin/env bash
# The reference's evaluation. CKPT= names the checkpoint.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${NGPU:=8}" "${BS:=64}" "${EMA:=0.9999}" "${AMP:=True}"
launch evaluate
