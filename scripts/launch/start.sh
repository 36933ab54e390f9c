# shellcheck shell=bash disable=SC2154
# Checks before anything starts, and the start. Sourced by ../launch.sh.

# launch train|evaluate|benchmark_training|infer|inspect FLAG...: check the settings, then run the program with these flags.
launch() {
    build "$@"
    _ranks
    if [[ -n "$dry_run" ]]; then
        print_command "${command[@]}"
        return
    fi
    "_check_$1"
    _check_machine
    _run "${command[@]}"
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

_check_machine() {
    local gpus=0
    [[ -x "$PYTHON" ]] || fail "$PYTHON: there is no such interpreter; bash scripts/demo.sh makes .venv, or set PYTHON="
    if [[ "$DEVICE" == gpu ]]; then
        gpus="$({ nvidia-smi --list-gpus 2>/dev/null || true; } | wc -l)"
        ((gpus >= NGPU)) || fail "NGPU=$NGPU, but this machine has $gpus GPUs; set NGPU=, or DEVICE=cpu to run on the CPU"
    else
        export CUDA_VISIBLE_DEVICES=""
    fi
    if [[ "$ENGINE" == jax ]]; then
        has_package jax || fail "ENGINE=jax needs JAX: bash scripts/install.sh jax-cuda"
    elif ((NGPU > 1)); then
        has_package horovod || fail "NGPU=$NGPU needs Horovod: bash scripts/install_horovod.sh"
        [[ "$LAUNCHER" != mpirun ]] || require_program mpirun "install Open MPI, or leave LAUNCHER= out"
    fi
}

# Run the command with its output on the terminal and in MODEL_DIR. SIGTERM is forwarded; the exit code is that of the command.
_run() {
    local log child status=0
    mkdir -p "$MODEL_DIR" || fail "MODEL_DIR=$MODEL_DIR cannot be made"
    log="$MODEL_DIR/train-$(date +%Y-%m-%d-%H-%M-%S).log"
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
