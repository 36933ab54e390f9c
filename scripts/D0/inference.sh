#!/usr/bin/env bash
# Run detection on an image and draw the boxes: IMAGE=, OUTPUT=, and MODEL_DIR= or CKPT= for the model.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
launch infer
