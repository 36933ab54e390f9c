#!/usr/bin/env bash
# Download pretrained weights: see `bash scripts/get_weights.sh --help`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
[[ -x "$PYTHON" ]] || PYTHON="$(_find_python)" # needs no installed package
PYTHONPATH="$REPOSITORY" exec "$PYTHON" -P -m efficientdet.weights.downloads "$@"
