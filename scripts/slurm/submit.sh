# shellcheck shell=bash
# Shared by the .sub recipes: one srun over all nodes, with or without a container. For sbatch:
#
#   checkpointdir=/results datadir=/data/coco sbatch scripts/D0/convergence-AMP-32xV100-32G.sub CONTAINER=apptainer
#
# CONTAINER=pyxis (default; the reference's), apptainer, singularity or none; IMAGE_TAG= names the image: for apptainer and
# singularity one of a Docker registry, or the path of a .sif file or a sandbox.
# checkpointdir and datadir are mounted at /workspace/checkpoints and /workspace/coco as in the reference (RetinaNet:
# /workspace/openimages), BACKBONE_CKPT at /workspace/checkpoints/efficientnet-b0-joc, WEIGHTS_DIR at /workspace/weights.
# The step of a published system has its nodes, processes and cores (launch/systems.sh). With ENGINE=jax a step has one process per
# node, with all its cores and devices.

source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/../..}/scripts/launch.sh"

# _shape_of_system: set the step's nodes, processes and cores from the file of a system; fail if the job has another shape.
_shape_of_system() {
    [[ -n "${SYSTEM:-}" ]] || return 0
    local found
    if [[ "$ENGINE" == horovod ]]; then
        step+=("--nodes=$NODES" "--ntasks=$NGPU" "--ntasks-per-node=$GPUS")
        [[ -z "${CORES:-}" ]] || step+=("--cpus-per-task=$((CORES / GPUS > 0 ? CORES / GPUS : 1))")
    fi
    [[ -z "${NETWORK:-}" ]] || step+=("--export=ALL,NCCL_SOCKET_IFNAME=$NETWORK,HOROVOD_GLOO_IFACE=$NETWORK")
    ((NODES * GPUS == NGPU)) || fail "SYSTEM=$SYSTEM: $NODES nodes of $GPUS GPUs, but NGPU=$NGPU"
    found="${SLURM_JOB_NUM_NODES:-$NODES}"
    [[ "$found" == "$NODES" ]] || fail "SYSTEM=$SYSTEM has $NODES nodes and the job $found; expected sbatch -N $NODES"
    found="${SLURM_NTASKS:-$NGPU}"
    [[ "$ENGINE" == jax || "$found" == "$NGPU" ]] || fail "SYSTEM=$SYSTEM has $NGPU processes and the job $found; expected sbatch -n $NGPU"
}

# _shape_of_jax: set the step's nodes and one process on each, and the number of devices of a process. The nodes are the job's.
_shape_of_jax() {
    local hosts="${SLURM_JOB_NUM_NODES:-${NODES:-1}}"
    _check_value SLURM_JOB_NUM_NODES "$hosts" count
    ((NGPU % hosts == 0)) || fail "NGPU=$NGPU; expected a multiple of the job's $hosts nodes"
    # shellcheck disable=SC2034 # the launcher uses it
    devices_of_process=$((NGPU / hosts))
    step+=("--nodes=$hosts" "--ntasks=$hosts" --ntasks-per-node=1 --cpu-bind=none)
}

# _enter_container: turn paths of the host into mounts and paths of the container. DATA and BACKBONE_CKPT of the host are mounted as
# datadir and backbone; a path below /workspace is already a path in the container.
_enter_container() {
    local image="docker://$IMAGE_TAG" mounts path
    mounts="$checkpointdir:/workspace/checkpoints,$datadir:/workspace/$(data_name)"
    if [[ -n "${BACKBONE_CKPT:-}" ]]; then
        mounts+=",$BACKBONE_CKPT:$MOUNTED_BACKBONE"
        : "${BACKBONE=$MOUNTED_BACKBONE}"
    elif [[ "${MODEL:-efficientdet-d0}" == efficientdet-d0 ]] && has_files "$checkpointdir/${MOUNTED_BACKBONE##*/}"; then
        : "${BACKBONE=$MOUNTED_BACKBONE}"
    fi
    [[ -z "${WEIGHTS_DIR:-}" ]] || mounts+=",$WEIGHTS_DIR:/workspace/weights"
    for path in "$checkpointdir" "$datadir" "${BACKBONE_CKPT:-}" "${WEIGHTS_DIR:-}"; do
        [[ "$path" != *[,:]* ]] || fail "$path: a comma or colon cannot stand in a container's mounts"
    done
    [[ -z "${WEIGHTS_DIR:-}" ]] || WEIGHTS_DIR=/workspace/weights
    case "$IMAGE_TAG" in
    /* | ./* | *.sif) image="$IMAGE_TAG" ;;
    esac
    case "$CONTAINER" in
    pyxis) step+=("--container-image=$IMAGE_TAG" --no-container-entrypoint "--container-mounts=$mounts") ;;
    apptainer | singularity) step+=("$CONTAINER" exec --nv --bind "$mounts" "$image") ;;
    esac
    # shellcheck disable=SC2034 # the launcher uses it
    PYTHON=/workspace/effdet-tf2/.venv/bin/python
    ROOT=/workspace/effdet-tf2
    : "${DATA:=/workspace/$(data_name)}"
}

# _check_folder NAME PATH: fail if a folder of the host is missing.
_check_folder() {
    [[ -z "$2" || -d "$2" ]] || fail "$1=$2: there is no such folder"
}

# submit VERB: run the recipe's command in one step of the job; srun forwards a SIGTERM from Slurm to the ranks.
submit() {
    : "${ENGINE:=horovod}" "${NGPU:=1}" "${CONTAINER:=pyxis}" "${checkpointdir:=/checkpoints}" "${IMAGE_TAG:=effdet_tf2:latest}"
    check_values
    if [[ "$CONTAINER" != none && -z "${datadir:-}" && -n "${DATA:-}" && "$DATA" != /workspace/* ]]; then
        datadir="$DATA" DATA=""
    fi
    : "${datadir:=/data/$(data_name)}"
    local mpi=pmix results=/workspace/checkpoints weights="${WEIGHTS_DIR:-}"
    [[ "$ENGINE" == horovod ]] || mpi=none
    local step=(srun "--mpi=$mpi" -l --kill-on-bad-exit=1)
    _shape_of_system
    [[ "$ENGINE" == horovod ]] || _shape_of_jax
    if [[ "$CONTAINER" == none ]]; then
        results="$checkpointdir"
        : "${DATA:=$datadir}"
    else
        _enter_container
    fi
    : "${MODEL_DIR:=$results/${SYSTEM:-${SLURM_JOB_NAME:-$(basename "$0" .sub)}}}"
    build "$1"
    if [[ -n "$dry_run" ]]; then
        print_command "${step[@]}" "${command[@]}"
        return
    fi
    [[ -n "${SLURM_JOB_ID:-}" ]] || fail "not in a Slurm job; run it with sbatch, or print the command with --dry_run"
    require_program srun "this script is for sbatch on a Slurm cluster; --dry_run shows what it would run"
    _check_folder checkpointdir "$checkpointdir"
    _check_folder datadir "$datadir"
    _check_folder BACKBONE_CKPT "${BACKBONE_CKPT:-}"
    _check_folder WEIGHTS_DIR "$weights"
    exec "${step[@]}" "${command[@]}"
}
