#!/usr/bin/env bash
# Published weights: `bash scripts/get_weights.sh --help` says how they are downloaded and where they are kept.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
[[ -x "$PYTHON" ]] || PYTHON="$(_find_python)" # of what is installed into .venv nothing is needed
PYTHONPATH="$REPOSITORY" exec "$PYTHON" -P -m efficientdet.weights.get_weights "$@"
