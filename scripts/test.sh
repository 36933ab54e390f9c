#!/usr/bin/env bash
# Run all checks: ruff, ruff format, mypy, bash -n, shellcheck, Horovod, pytest. Every check runs; the exit code is 1 if one of them failed.
#
#   bash scripts/test.sh                 all checks and tests
#   bash scripts/test.sh --quick         linters and the test files of tests/quick.txt (under 3 minutes), without Horovod
#   bash scripts/test.sh --cov           all checks and tests, and the coverage of each file (also with --quick)
#   bash scripts/test.sh --endurance     all checks and tests, and trainings that are killed more often (nightly)
#   bash scripts/test.sh --label_studio=PROGRAM  all checks and tests, and the labeling loop in this Label Studio
#   bash scripts/test.sh -k pipeline     other arguments are passed to pytest
#
# TEST_WORKERS= is the number of test processes (default: the number of cores, at most 4; each takes up to 5 GB). All tests of a
# file run in one of them. The page of serve.py is tested in Chromium if it is installed (Debian: apt install chromium).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh
use_environment test

quick="" arguments=()
for argument; do
    case "$argument" in
    --quick) quick=yes ;;
    --cov) arguments+=(--cov --cov-report=) ;;
    *) arguments+=("$argument") ;;
    esac
done
if [[ -n "$quick" ]]; then
    mapfile -t files < <(grep -v '^#' tests/quick.txt)
    arguments+=("${files[@]/#/tests/}")
fi

failed=()
logs="$(mktemp -d)"
trap 'rm -rf "$logs" "${files_of_tests:-}"' EXIT

# Tests flush thousands of files, each of which waits some milliseconds for a disk; they write 2 GB in all.
free_gigabytes="$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1 || true)"
if ((${free_gigabytes:-0} >= 8)); then
    files_of_tests="$(mktemp -d /dev/shm/tests.XXXXXX)"
    arguments=("--basetemp=$files_of_tests" "${arguments[@]}")
fi

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

# lint NAME COMMAND...: start a linter in the background; show_lint NAME waits for it and prints its output.
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
lint "ruff format" "$PYTHON" -m ruff format --check .
lint "mypy" "$PYTHON" -m mypy
lint "bash -n" parse_all "${scripts[@]}"
lint "shellcheck" .venv/bin/shellcheck "${scripts[@]}"
[[ -n "$quick" ]] || check "horovod" bash scripts/install_horovod.sh # before pytest, which skips its tests without it
check "pytest" "$PYTHON" -m pytest --numprocesses "${TEST_WORKERS:-auto}" --maxprocesses 4 --dist loadfile \
    --no-loadscope-reorder --max-worker-restart 0 --durations 20 --durations-min 1 "${arguments[@]}"
for name in "ruff" "ruff format" "mypy" "bash -n" "shellcheck"; do
    check "$name" show_lint "$name"
done
if [[ " ${arguments[*]} " == *" --cov "* ]]; then
    check "coverage" "$PYTHON" -m coverage report
fi

if ((${#failed[@]})); then
    printf 'test.sh: FAILED: %s\n' "$(IFS=,; printf '%s' "${failed[*]}")"
    exit 1
fi
printf 'test.sh: all passed (ruff, ruff format, mypy, bash -n and shellcheck of %d scripts, pytest)\n' "${#scripts[@]}"
