#!/usr/bin/env bash
# Weights that others publish: downloads one file, checks it and keeps it where --backbone_init=NAME and --pretrained_ckpt=NAME
# find it. An interrupted download goes on. Without a word: lists the names.
#
#   bash scripts/get_weights.sh
#   bash scripts/get_weights.sh resnext50_32x4d            into ~/.cache/efficientdet/weights
#   bash scripts/get_weights.sh resnext50_32x4d FOLDER
#
# Environment: EFFICIENTDET_WEIGHTS (another folder), EFFICIENTDET_WEIGHTS_URL (a mirror with the same file names),
# https_proxy.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
if [[ "${1:-}" == -* ]]; then
    [[ "$1" == --help || "$1" == -h ]] || takes_no_words "$1"
    print_header "$0"
    exit 0
fi
[[ -x "$PYTHON" ]] || PYTHON="$(_find_python)" # of what is installed into .venv nothing is needed
PYTHONPATH="$REPOSITORY" exec "$PYTHON" -m efficientdet.checkpoints.get_weights "$@"
