#!/usr/bin/env bash
# Start a shell in the image: bash scripts/docker/interactive.sh [DATA]. DATA=, CKPT= and BACKBONE_CKPT= are mounted if they are set;
# PORT= is the port of TensorBoard. --dry_run prints the command. The recipes of D0 initialize from the mounted backbone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../docker_shell.sh"
folders DATA -- "$@"
start_shell --name "${name:-interactive}" -p "0.0.0.0:${PORT:-6007}:${PORT:-6007}" \
    -v "$(absolute "${DATA:-/mnt/nvdl/datasets/coco_master/coco2017_tfrecords}"):/workspace/coco" \
    ${CKPT:+-v "$(absolute "$CKPT"):/workspace/checkpoints/efficientdet-tf2"} \
    ${BACKBONE_CKPT:+-v "$(absolute "$BACKBONE_CKPT"):/workspace/checkpoints/efficientnet-b0-joc"}
