#!/usr/bin/env bash
# Everything the project checks: ruff, the shell scripts, Horovod, pytest. All of it runs; one failure fails the whole.
# Arguments go to pytest: bash scripts/test.sh -k pipeline
# TEST_WORKERS= processes run the tests side by side, a file in one of them (default: the cores, at most 4; each takes up to 5 GB).
# The page of serve.py is tried in a real browser where one is installed (Debian: apt install chromium); else that test is skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
use_environment test

failed=()
logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT

check() {
    local name="$1"
    shift
    printf '== %s\n' "$name"
    "$@" || failed+=("$name")
}

parse_all() {
    local script status=0
    for script; do
        bash -n "$script" || status=1
    done
    return "$status"
}

# lint NAME COMMAND...: run a check in the background; show_lint NAME waits for it and shows what it printed.
declare -A lint_jobs
lint() {
    local name="$1"
    shift
    "$@" >"$logs/$name" 2>&1 &
    lint_jobs[$name]=$!
}

show_lint() {
    local status=0
    wait "${lint_jobs[$1]}" || status=$?
    cat "$logs/$1"
    return "$status"
}

shopt -s globstar nullglob
scripts=(*.sh **/*.sh **/*.sub .ci/run)
lint "ruff" "$PYTHON" -m ruff check .
lint "bash -n" parse_all "${scripts[@]}"
lint "shellcheck" .venv/bin/shellcheck "${scripts[@]}"
check "horovod" bash scripts/install_horovod.sh # before pytest, which skips tests where it is missing
check "pytest" "$PYTHON" -m pytest --numprocesses "${TEST_WORKERS:-auto}" --maxprocesses 4 --dist loadfile \
    --no-loadscope-reorder --max-worker-restart 0 --durations 60 --durations-min 1 "$@"
for name in "ruff" "bash -n" "shellcheck"; do
    check "$name" show_lint "$name"
done

if ((${#failed[@]})); then
    printf 'test.sh: FAILED: %s\n' "$(IFS=,; printf '%s' "${failed[*]}")"
    exit 1
fi
printf 'test.sh: all passed (ruff, bash -n and shellcheck of %d scripts, pytest)\n' "${#scripts[@]}"
