#!/usr/bin/env bash
# Start a shell in the image with a folder of data and one of results, as SSD300's document does: bash scripts/docker/launch.sh DATA RESULTS
# DATA (default: coco) is mounted at /workspace/coco and /datasets, RESULTS (default: results) at /results. --dry_run prints the command.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../docker_shell.sh"
folders DATA RESULTS -- "$@"
data="$(absolute "${DATA:-coco}")"
start_shell -v "$data:/workspace/coco" -v "$data:/datasets" -v "$(absolute "${RESULTS:-results}"):/results"
