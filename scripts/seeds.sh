#!/usr/bin/env bash
# Run a recipe with several seeds, and print the AP of each with mean and standard deviation:
#
#   bash scripts/seeds.sh 5 scripts/D0/convergence-AMP-8xA100-80G.sh DATA=/data/coco checkpointdir=/results
#
# Words after the recipe are its settings. A run's folder is checkpointdir/RECIPE-seed-N (default of checkpointdir: /tmp). The same
# command resumes: runs that are complete are not repeated. A .sub recipe is submitted once per seed. --dry_run prints the commands.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ "${1:-}" == --help || "${1:-}" == -h ]]; then
    print_header "$0"
    exit 0
fi
[[ -f "${2:-}" || ! -f "$root/${2:-}" ]] || set -- "$1" "$root/$2" "${@:3}"
if [[ ! "${1:-}" =~ ^[1-9][0-9]{0,2}$ || ! -f "${2:-}" ]]; then
    printf '%s: error: expected a number of seeds and a recipe, such as 5 scripts/ssd/run.sh SYSTEM=C4140\n' "${0##*/}" >&2
    exit 2
fi
count="$1" recipe="$2" folder="${checkpointdir:-${LOGDIR:-/tmp}}" runner=bash is_dry="" metrics=()
shift 2
for word; do
    case "${word,,}" in
    checkpointdir=* | logdir=*) folder="${word#*=}" ;;
    seed=* | model_dir=*)
        printf '%s: error: %s: each run has a seed and a folder of its own; expected checkpointdir=\n' "${0##*/}" "$word" >&2
        exit 2
        ;;
    --dry_run | --dry-run) is_dry=yes ;;
    esac
done
[[ "$recipe" != *.sub || -n "$is_dry" ]] || runner=sbatch
name="$(basename "$recipe")"
for ((seed = 1; seed <= count; seed++)); do
    run="$folder/${name%.*}-seed-$seed"
    metrics+=("$run/metrics-final.json")
    "$runner" "$recipe" "$@" "SEED=$seed" "MODEL_DIR=$run"
done
[[ -z "$is_dry" && "$runner" == bash ]] || exit 0
"${PYTHON:-$root/.venv/bin/python}" - "${metrics[@]}" <<'END'
import json, os, statistics, sys
for path in sys.argv[1:]:
    if not os.path.isfile(path):
        print(f"seeds.sh: error: {path}: no such file; this run was not evaluated at its end", file=sys.stderr)
        sys.exit(2)
found = [100 * json.load(open(path))["AP"] for path in sys.argv[1:]]
for seed, ap in enumerate(found, start=1):
    print(f"seed {seed}: AP {ap:.2f}")
spread = f", standard deviation {statistics.stdev(found):.2f}" if len(found) > 1 else ""
print(f"{len(found)} seeds: mean AP {statistics.mean(found):.2f}{spread}")
END
