#!/usr/bin/env bash
# Build the container image. TAG= is its name, with a registry to push it: TAG=registry.example.com/team/effdet_tf2:1. BASE= and
# BUILD_BASE= replace the base images of the Dockerfile. --dry_run prints the command.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
command=(docker build --rm -t "${TAG:-effdet_tf2}" ${BASE:+--build-arg "BASE=$BASE"}
    ${BUILD_BASE:+--build-arg "BUILD_BASE=$BUILD_BASE"} "$root" -f "$root/Dockerfile")
if [[ "${1:-}" == --dry_run ]]; then
    printf '%q ' "${command[@]}"
    printf '\n'
    exit
fi
takes_no_words "$@"
require_program docker "install Docker"
exec "${command[@]}"
