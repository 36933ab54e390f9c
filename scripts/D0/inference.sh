#!/usr/bin/env bash
# Draws detections into an image: IMAGE=, OUTPUT=, and MODEL_DIR= or CKPT= for the model.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
launch infer
