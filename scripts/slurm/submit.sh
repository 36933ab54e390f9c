# shellcheck shell=bash disable=SC2154
# Shared by the .sub recipes: one srun over all nodes, with or without a container. For sbatch:
#
#   checkpointdir=/results datadir=/data/coco sbatch scripts/D0/convergence-AMP-32xV100-32G.sub CONTAINER=apptainer
#
# CONTAINER=pyxis (default; the reference's), apptainer, singularity or none; IMAGE_TAG= names the image: for apptainer and
# singularity one of a Docker registry, or the path of a .sif file or a sandbox.
# launch/containers.sh has the mounts.
# The step of a published system has its nodes, processes and cores (launch/systems.sh). With ENGINE=jax a step has one process per
# node, with all its cores and devices.

source "${SLURM_SUBMIT_DIR:-$(dirname "${BASH_SOURCE[0]}")/../..}/scripts/launch.sh"

# _shape_of_system: set the step's nodes, processes and cores from the file of a system; fail if the job has another shape.
_shape_of_system() {
    local found
    if [[ -z "${SYSTEM:-}" ]]; then
        [[ "$ENGINE" == jax || -z "${GIVEN[NODES]:-}" ]] || step+=("--nodes=$NODES")
        [[ "$ENGINE" == jax || -z "${GIVEN[NGPU]:-}" ]] || step+=("--ntasks=$NGPU")
        return
    fi
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
    [[ -z "${GIVEN[NODES]:-}" || "$hosts" == "$NODES" ]] || fail "NODES=$NODES, but the job has $hosts; expected sbatch -N $NODES"
    ((NGPU % hosts == 0)) || fail "NGPU=$NGPU; expected a multiple of the job's $hosts nodes"
    # shellcheck disable=SC2034 # the launcher uses it
    devices_of_process=$((NGPU / hosts))
    step+=("--nodes=$hosts" "--ntasks=$hosts" --ntasks-per-node=1 --cpu-bind=none)
}

# _container_step: add the container to the step.
_container_step() {
    local image="docker://$IMAGE_TAG" binds
    binds="$(IFS=,; printf '%s' "${mounts[*]}")"
    case "$IMAGE_TAG" in
    /* | ./* | *.sif) image="$IMAGE_TAG" ;;
    esac
    case "$CONTAINER" in
    pyxis) step+=("--container-image=$IMAGE_TAG" --no-container-entrypoint "--container-mounts=$binds") ;;
    apptainer | singularity) step+=("$CONTAINER" exec --nv --bind "$binds" "$image") ;;
    docker) fail "CONTAINER=docker is for the .sh recipes; expected pyxis, apptainer, singularity or none" ;;
    esac
}

# submit VERB: run the recipe's command in one step of the job; srun forwards a SIGTERM from Slurm to the ranks.
submit() {
    refuse_unread "$1"
    : "${ENGINE:=horovod}" "${NGPU:=1}" "${CONTAINER:=pyxis}" "${IMAGE_TAG:=effdet_tf2:latest}"
    check_values
    local mpi=pmix results=/workspace/checkpoints
    [[ "$ENGINE" == horovod ]] || mpi=none
    local step=(srun "--mpi=$mpi" -l --kill-on-bad-exit=1)
    _shape_of_system
    [[ "$ENGINE" == horovod ]] || _shape_of_jax
    if [[ "$CONTAINER" == none ]]; then
        one_folder_of_data
        : "${checkpointdir:=${MODEL_DIR:+$(dirname "$MODEL_DIR")}}" "${datadir:=${DATA:-/data/$(data_name)}}" "${DATA:=$datadir}"
        : "${checkpointdir:=/checkpoints}"
        results="$checkpointdir"
        local key
        for key in checkpointdir datadir BACKBONE_CKPT WEIGHTS_DIR; do
            [[ -z "${!key:-}" ]] || host_folders+=("$key=${!key}")
        done
    else
        enter_container
        _container_step
    fi
    : "${MODEL_DIR:=$results/${SYSTEM:-${SLURM_JOB_NAME:-$(basename "$0" .sub)}}}"
    build "$1"
    if [[ -n "$dry_run" ]]; then
        print_command "${step[@]}" "${command[@]}"
        return
    fi
    [[ -n "${SLURM_JOB_ID:-}" ]] || fail "not in a Slurm job; run it with sbatch, or print the command with --dry_run"
    require_program srun "this script is for sbatch on a Slurm cluster; --dry_run shows what it would run"
    check_host_folders
    exec "${step[@]}" "${command[@]}"
}
