#!/usr/bin/env bash
# Start a shell in the image. DATA=, CKPT= and BACKBONE_CKPT= are mounted if they are set; PORT= is the port of TensorBoard.
# --dry_run prints the command. The recipes of D0 initialize from the mounted backbone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
command=(docker run -it --rm --gpus all --name "${name:-interactive}" --shm-size=30g --ulimit memlock=-1
    --ulimit stack=67108864 --ipc=host -p "0.0.0.0:${PORT:-6007}:${PORT:-6007}"
    -v "${DATA:-/mnt/nvdl/datasets/coco_master/coco2017_tfrecords}:/workspace/coco"
    ${CKPT:+-v "$CKPT:/workspace/checkpoints/efficientdet-tf2"}
    ${BACKBONE_CKPT:+-v "$BACKBONE_CKPT:/workspace/checkpoints/efficientnet-b0-joc"}
    "${DOCKER:-effdet_tf2:latest}" bash)
if [[ "${1:-}" == --dry_run ]]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    exit
fi
takes_no_words "$@"
require_program docker "install Docker with the NVIDIA Container Toolkit"
exec "${command[@]}"
