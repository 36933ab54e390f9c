#!/usr/bin/env bash
# Mask R-CNN-ResNet50 on COCO on a published system of one node: bash scripts/mask_rcnn/run.sh SYSTEM=DGXA100 DATA=... MODEL_DIR=...
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
settings "$@"
: "${MODEL:=mask-rcnn-resnet50}"
train_published_system mask_rcnn
