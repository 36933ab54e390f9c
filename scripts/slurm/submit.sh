# shellcheck shell=bash
# What the .sub recipes share: one srun over all nodes, in a container or in none. For sbatch:
#
#   checkpointdir=/results datadir=/data/coco sbatch scripts/D0/convergence-AMP-32xV100-32G.sub CONTAINER=apptainer
#
# CONTAINER=pyxis (default; the reference's), apptainer, singularity or none; IMAGE_TAG= names the image.
# checkpointdir and datadir are mounted at /workspace/checkpoints and /workspace/coco as in the reference.

source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/../..}/scripts/launch.sh"

# submit VERB: the recipe's command in one step of the job; a SIGTERM from Slurm reaches the ranks by srun itself.
submit() {
    : "${CONTAINER:=pyxis}" "${checkpointdir:=/checkpoints}" "${datadir:=/data/coco}" "${IMAGE_TAG:=effdet_tf2:latest}"
    check_values
    local mounts="$checkpointdir:/workspace/checkpoints,$datadir:/workspace/coco" step=(srun --mpi=pmix -l --kill-on-bad-exit=1)
    : "${MODEL_DIR:=/workspace/checkpoints/${SLURM_JOB_NAME:-$(basename "$0" .sub)}}"
    case "$CONTAINER" in
    pyxis) step+=("--container-image=$IMAGE_TAG" --no-container-entrypoint "--container-mounts=$mounts") ;;
    apptainer | singularity) step+=("$CONTAINER" exec --nv --bind "$mounts" "docker://$IMAGE_TAG") ;;
    none) DATA="${DATA:-$datadir}" ;;
    esac
    if [[ "$CONTAINER" != none ]]; then
        PYTHON=/workspace/effdet-tf2/.venv/bin/python ROOT=/workspace/effdet-tf2
    fi
    case "$checkpointdir$datadir" in
    *[,:]*) fail "checkpointdir=$checkpointdir, datadir=$datadir: a comma or colon cannot stand in a container's mounts" ;;
    esac
    build "$1"
    if [[ -n "$dry_run" ]]; then
        print_command "${step[@]}" "${command[@]}"
        return
    fi
    [[ -n "${SLURM_JOB_ID:-}" ]] || fail "is for sbatch; --dry_run shows what it would run"
    [[ -d "$checkpointdir" ]] || fail "checkpointdir=$checkpointdir: there is no such folder"
    [[ -d "$datadir" ]] || fail "datadir=$datadir: there is no such folder"
    exec "${step[@]}" "${command[@]}"
}
