#!/usr/bin/env bash
# Install this project and its extras into .venv, in the versions of requirements.lock: bash scripts/install.sh [EXTRA...]
#
#   bash scripts/install.sh                          for training, evaluation and inference
#   bash scripts/install.sh serve export litert      also the server, ONNX Runtime, OpenVINO and LiteRT
#   source .venv/bin/activate
#
# pyproject.toml lists the extras under [project.optional-dependencies]. .venv is created if it is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
    print_header "$0"
    exit 0
fi

# Prints the names of the extras, a line each.
known_extras() {
    local line section=""
    while IFS= read -r line; do
        if [[ "$line" == '['* ]]; then
            section="$line"
        elif [[ "$section" == '[project.optional-dependencies]' && "$line" =~ ^([a-z0-9-]+)' = ' ]]; then
            printf '%s\n' "${BASH_REMATCH[1]}"
        fi
    done <"$REPOSITORY/pyproject.toml"
}

known="$(known_extras)"
for extra in "$@"; do
    grep -qxF -- "$extra" <<<"$known" || _give_up "found extra '$extra'; expected names among ${known//$'\n'/, }"
done
extras="$*"
use_environment "${extras// /,}"
