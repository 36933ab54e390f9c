#!/usr/bin/env bash
# Builds the image; TAG= names it. --dry_run prints the command.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
command=(docker build --rm -t "${TAG:-effdet_tf2}" . -f Dockerfile)
if [[ "${1:-}" == --dry_run ]]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    exit
fi
exec "${command[@]}"
