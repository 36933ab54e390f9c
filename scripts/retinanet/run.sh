#!/usr/bin/env bash
# RetinaNet-ResNeXt50 on Open Images on a published system of one node: bash scripts/retinanet/run.sh SYSTEM=DGXA100 DATA=... MODEL_DIR=...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${MODEL:=retinanet-resnext50}"
train_published_system retinanet
