#!/usr/bin/env bash
# SSD300-ResNet34 on COCO on a published system of one node: bash scripts/ssd/run.sh SYSTEM=C4140 DATA=... MODEL_DIR=...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${MODEL:=ssd300-resnet34}"
train_published_system ssd
