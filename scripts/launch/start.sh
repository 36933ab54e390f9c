# shellcheck shell=bash disable=SC2154
# Checks before anything starts, and the start. Sourced by ../launch.sh.

# launch train|evaluate|benchmark_training|infer|inspect FLAG...: check the settings, then run the program with these flags.
launch() {
    local step=() log_folder=""
    refuse_unread "$1"
    case "${CONTAINER:=none}" in
    none) one_folder_of_data ;;
    docker) _enter_docker ;;
    *) fail "CONTAINER=$CONTAINER; expected docker or none (the .sub recipes, for sbatch, have others)" ;;
    esac
    build "$@"
    _ranks
    command=("${step[@]}" "${command[@]}")
    if [[ -n "$dry_run" ]]; then
        print_command "${command[@]}"
        return
    fi
    if [[ "$CONTAINER" == docker ]]; then
        log_folder="$checkpointdir${MODEL_DIR#/workspace/checkpoints}"
        mkdir -p "$log_folder" || fail "$log_folder cannot be made"
        check_host_folders
        require_program docker "install Docker with the NVIDIA Container Toolkit"
    else
        log_folder="$MODEL_DIR"
        "_check_$1"
        _check_python
    fi
    _check_gpus "$1"
    _run "${command[@]}"
}

# one_folder_of_data: fail if DATA and datadir differ. Outside a container they are two names of one folder.
one_folder_of_data() {
    [[ -z "${GIVEN[DATA]:-}" || -z "${GIVEN[datadir]:-}" || -z "${DATA:-}" || -z "${datadir:-}" || "$DATA" == "$datadir" ]] ||
        fail "DATA=$DATA and datadir=$datadir are one setting here; expected one of the two names, or one value"
}

# Turn the settings into those of a container, as run_with_docker.sh of the references does.
_enter_docker() {
    local key
    : "${IMAGE_TAG:=effdet_tf2:latest}" "${checkpointdir:=/tmp}"
    check_values
    [[ -z "${MODEL_DIR:-}" || "$MODEL_DIR" != /workspace/* || "$MODEL_DIR" == /workspace/checkpoints/* ]] ||
        fail "MODEL_DIR=$MODEL_DIR is not mounted in the container; expected a folder of this machine"
    enter_container
    docker_command
    : "${MODEL_DIR:=/workspace/checkpoints/${SYSTEM:-$(basename "$0" .sh)}}"
    [[ "$MODEL_DIR" == /workspace/checkpoints* ]] ||
        fail "MODEL_DIR=$MODEL_DIR is not below checkpointdir=$checkpointdir, the folder that is mounted for results"
    for key in DATA TRAIN VAL VAL_JSON MLPERF_LOG; do
        [[ "${!key:-}" != /* || "${!key}" == /workspace/* ]] ||
            fail "$key=${!key} is in none of the mounted folders ${host_folders[*]}"
    done
}

_check_records() {
    local files
    mapfile -t files < <(compgen -G "$1" || true)
    ((${#files[@]})) || fail "no records match $2=$1; set DATA= to the folder of train-* and val-*"
}

_check_backbone() {
    local path="${BACKBONE:-}"
    if [[ "$path" == *[/.]* && ! -e "$path" && ! -e "$path.index" ]]; then # other words are checked by the program
        fail "BACKBONE=$BACKBONE: there is no such file; expected 'imagenet', published weights (name or file), or a checkpoint"
    fi
}

_check_json() {
    [[ -z "${VAL_JSON:-}" || -f "$VAL_JSON" ]] || fail "VAL_JSON=$VAL_JSON: there is no such file; an empty VAL_JSON= evaluates without it"
}

_check_train() {
    _check_records "$TRAIN" TRAIN
    _check_records "$VAL" VAL
    _check_json
    _check_backbone
}

_check_benchmark_training() {
    _check_records "$TRAIN" TRAIN
    _check_backbone
}

_check_evaluate() {
    _check_records "$VAL" VAL
    _check_json
    [[ -e "$CKPT" || -e "$CKPT.index" ]] || fail "CKPT=$CKPT: there is no such checkpoint"
}

_check_infer() {
    local place="${CKPT:-$MODEL_DIR}"
    [[ -e "$place" || -e "$place.index" ]] || fail "there is no model in $place; set MODEL_DIR= or CKPT="
}

_check_inspect() {
    return 0
}

# _check_gpus VERB: fail if this machine has too few GPUs. Detection in images needs none.
_check_gpus() {
    local gpus=0
    [[ "$DEVICE" == gpu && ("$1" != infer || -n "${GIVEN[DEVICE]:-}") ]] || return 0
    gpus="$({ nvidia-smi --list-gpus 2>/dev/null || true; } | wc -l)"
    ((gpus >= NGPU)) || fail "NGPU=$NGPU, but this machine has $gpus GPUs; set NGPU=, or DEVICE=cpu to run on the CPU"
}

_check_python() {
    [[ -x "$PYTHON" ]] || fail "$PYTHON: there is no such interpreter; bash scripts/demo.sh makes .venv, or set PYTHON="
    if [[ "$ENGINE" == jax ]]; then
        has_package jax || fail "ENGINE=jax needs JAX: bash scripts/install.sh jax-cuda"
    elif ((NGPU > 1)); then
        has_package horovod || fail "NGPU=$NGPU needs Horovod: bash scripts/install_horovod.sh"
        [[ "$LAUNCHER" != mpirun ]] || require_program mpirun "install Open MPI, or leave LAUNCHER= out"
    fi
}

# Run the command with its output on the terminal and in MODEL_DIR (for a container the folder on the host). SIGTERM is forwarded; the exit code is that of the command.
_run() {
    local log child status=0
    mkdir -p "$log_folder" || fail "MODEL_DIR=$log_folder cannot be made"
    log="$log_folder/train-$(date +%Y-%m-%d-%H-%M-%S).log"
    "$@" > >(trap '' TERM INT; exec tee "$log") 2>&1 &
    child=$!
    trap 'kill -TERM "$child" 2>/dev/null' TERM INT
    wait "$child" || status=$?
    while kill -0 "$child" 2>/dev/null; do # a signal ends `wait` before the program has saved and ended
        status=0
        wait "$child" || status=$?
    done
    exit "$status"
}
