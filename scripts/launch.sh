# shellcheck shell=bash
# What every recipe under scripts/D0 and scripts/slurm shares: settings, checks before anything starts, and the launch.
# A recipe sets its numbers as defaults and calls one verb:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
#   settings "$@"                    # KEY=VALUE words, --dry_run and --flag=value of the command line
#   : "${NGPU:=8}" "${BS:=200}" ...  # the recipe's numbers, where nobody said otherwise
#   launch train --training_mode=...
#
# A setting comes from the environment or, stronger, from a KEY=VALUE word after the command. No value is ever evaluated:
# numbers are checked to be numbers before any arithmetic, which in bash would run a command inside a subscript.

declare -A WANTED=( # setting -> what its value must look like; a setting without a value is not checked
    [NGPU]=count [EVAL_BS]=count [EPOCHS]=count [STEPS]=count [EXAMPLES]=count [RUNS]=count
    [STOP_EPOCH]=natural [EVAL_SAMPLES]=natural [SEED]=natural
    [LR]=decimal [WARMUP]=decimal [EMA]=decimal [MOMENTUM]=decimal
    [AMP]=boolean [XLA]=boolean [BS]=count
    [DEVICE]="cpu gpu" [LAUNCHER]="horovodrun mpirun" [CONTAINER]="pyxis apptainer singularity none"
    [PRECISION]="float32 mixed_float16 mixed_bfloat16" [training_mode]="train train300 traineval"
)
LAUNCH_KEYS=(DATA TRAIN VAL VAL_JSON CKPT MODEL_DIR BACKBONE MODEL NGPU DEVICE BS EVAL_BS EPOCHS STOP_EPOCH STEPS LR
    WARMUP EMA MOMENTUM AMP PRECISION XLA EXAMPLES EVAL_SAMPLES HPARAMS SEED LAUNCHER IMAGE OUTPUT RUNS training_mode PYTHON
    CONTAINER IMAGE_TAG checkpointdir datadir)
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
source "$ROOT/scripts/usage.sh"
dry_run=""
extra=()
command=()

fail() {
    printf '%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# settings WORD...: reads the command line; an unknown key is an error that names the nearest known one.
settings() {
    local word key known
    for word; do
        case "$word" in
        --dry_run | --dry-run) dry_run=yes ;;
        --help | -h)
            _usage
            exit 0
            ;;
        --*) extra+=("$word") ;;
        *=*)
            key="${word%%=*}"
            known=" ${LAUNCH_KEYS[*]} "
            [[ "$known" == *" $key "* ]] || fail "unknown setting $key$(_nearest "$key"); wanted one of ${LAUNCH_KEYS[*]}"
            printf -v "$key" '%s' "${word#*=}"
            ;;
        *) fail "unexpected word '$word'; wanted KEY=VALUE, --flag=value or --dry_run" ;;
        esac
    done
}

# What the recipe says of itself in its first comment, its own numbers, and what can be said to it.
_usage() {
    local numbers=()
    print_header "$0"
    mapfile -t numbers < <(grep -oE '\$\{[A-Za-z_]+:?=[^}]*\}' "$0" | sed -E 's/^\$\{([A-Za-z_]+):?=/\1=/; s/\}$//')
    printf '\nusage: bash %s [KEY=VALUE ...] [--flag=value ...] [--dry_run]\n' "$0"
    printf '  KEY=VALUE     a setting, also taken from the environment; one of\n'
    printf '%s\n' "${LAUNCH_KEYS[*]}" | fold -s -w 100 | sed 's/^/                /'
    ((${#numbers[@]} == 0)) || printf '  here by default:  %s\n' "${numbers[*]}"
    printf '  --flag=value  handed on to the program; its own --help lists them\n'
    printf '  --dry_run     prints the command that would run\n'
}

# check_values: every setting that has a value has one of the wanted kind.
check_values() {
    local key
    for key in "${!WANTED[@]}"; do
        [[ -z "${!key:-}" ]] || _check_value "$key" "${!key}" "${WANTED[$key]}"
    done
}

# Numbers have at most nine digits: more do not fit what a shell counts with.
_check_value() {
    local key="$1" value="$2" kind="$3" pattern wanted
    case "$kind" in
    count) pattern='^[1-9][0-9]{0,8}$' wanted="a whole number from 1 on" ;;
    natural) pattern='^(0|[1-9][0-9]{0,8})$' wanted="a whole number from 0 on" ;;
    decimal) pattern='^([0-9]{1,9}(\.[0-9]{0,17})?|\.[0-9]{1,17})([eE][-+]?[0-9]{1,2})?$' wanted="a number such as 0.08" ;;
    boolean) pattern='^(True|False|true|false|1|0)$' wanted="True or False" ;;
    *) pattern="^(${kind// /|})\$" wanted="one of $kind" ;;
    esac
    [[ "$value" =~ $pattern ]] || fail "$key=$value; wanted $wanted"
}

# Prints ", did you mean KEY?" where a key differs in its case only, or begins or ends alike.
_nearest() {
    local key
    for key in "${LAUNCH_KEYS[@]}"; do
        if [[ "${key,,}" == "${1,,}" || "${key,,}" == "${1,,}"* || "${1,,}" == "${key,,}"* ]]; then
            printf ', did you mean %s?' "$key"
            return
        fi
    done
}

# launch train|evaluate|benchmark_training|infer|inspect FLAG...: checks, then runs the program with these flags.
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

# build VERB FLAG...: the array `command`, as one process runs it.
build() {
    local verb="$1"
    shift
    check_values
    : "${DATA:=/workspace/coco}" "${NGPU:=1}" "${DEVICE:=gpu}" "${LAUNCHER:=horovodrun}" "${MODEL:=efficientdet-d0}"
    : "${TRAIN:=$DATA/train-*}" "${VAL:=$DATA/val-*}" "${VAL_JSON=$DATA/annotations/instances_val2017.json}"
    : "${MODEL_DIR:=/tmp/$(basename "$0" | sed 's/\.[a-z]*$//')}" "${PYTHON:=$ROOT/.venv/bin/python}"
    if [[ "$DEVICE" == cpu ]]; then
        AMP=False XLA=False PRECISION="" # both slow a CPU down
    fi
    "_${verb}_command" "$@"
    command+=("${extra[@]}")
}

# print_command WORD...: as one line that a shell takes.
print_command() {
    printf '%q ' "$@"
    printf '\n'
}

_precision_flags() {
    if [[ -n "${PRECISION:-}" ]]; then
        command+=("--precision=$PRECISION")
    else
        command+=("--amp=${AMP:-True}")
    fi
    command+=("--use_xla=${XLA:-True}")
}

_hparams() {
    local hparams="moving_average_decay=$EMA${MOMENTUM:+,momentum=$MOMENTUM}${HPARAMS:+,$HPARAMS}"
    command+=("--hparams=$hparams")
}

_train_command() {
    command=("$PYTHON" "$ROOT/train.py" "--training_mode=${training_mode:?}" "--training_file_pattern=$TRAIN"
        "--val_file_pattern=$VAL" ${VAL_JSON:+"--val_json_file=$VAL_JSON"} "--model_name=$MODEL" "--model_dir=$MODEL_DIR"
        ${BACKBONE:+"--backbone_init=$BACKBONE"} "--batch_size=$BS" "--eval_batch_size=$EVAL_BS" "--num_epochs=$EPOCHS"
        "--stop_epoch=${STOP_EPOCH:-300}" "--eval_from=200" "--eval_period=10" "--checkpoint_period=10"
        "--num_examples_per_epoch=${EXAMPLES:-120000}" "--eval_samples=${EVAL_SAMPLES:-5000}" "--lr=$LR" "--warmup_epochs=$WARMUP"
        ${SEED:+"--seed=$SEED"})
    _precision_flags
    _hparams
    command+=("$@")
}

_benchmark_training_command() {
    command=("$PYTHON" "$ROOT/train.py" "--training_mode=train300" "--training_file_pattern=$TRAIN" "--model_name=$MODEL"
        "--model_dir=$MODEL_DIR" ${BACKBONE:+"--backbone_init=$BACKBONE"} "--batch_size=$BS" "--num_epochs=1" "--lr=$LR"
        "--warmup_epochs=$WARMUP" "--benchmark=True" "--benchmark_steps=${STEPS:-500}")
    _precision_flags
    _hparams
    command+=("$@")
}

_evaluate_command() {
    : "${CKPT:=/checkpoints/emackpt-300}"
    command=("$PYTHON" "$ROOT/eval.py" "--val_file_pattern=$VAL" ${VAL_JSON:+"--val_json_file=$VAL_JSON"} "--model_name=$MODEL"
        "--ckpt_path=$CKPT" "--batch_size=$BS" "--eval_samples=${EVAL_SAMPLES:-5000}")
    _precision_flags
    MOMENTUM="" _hparams
    command+=("$@")
}

_infer_command() {
    : "${IMAGE:=$ROOT/testdata/img1.jpg}" "${OUTPUT:=/tmp/inference}"
    command=("$PYTHON" "$ROOT/infer.py" "--image_path=$IMAGE" "--output_dir=$OUTPUT" "--model_dir=${CKPT:-$MODEL_DIR}" "$@")
}

_inspect_command() {
    command=("$PYTHON" "$ROOT/inspector.py" "--model_name=$MODEL" "--mode=benchmark" "--batch_size=$BS"
        "--bm_runs=${RUNS:-100}")
    _precision_flags
    command+=("$@")
}

# Several processes: the command behind a launcher. In a Slurm step srun has started them.
_ranks() {
    if ((NGPU == 1)) || [[ -n "${SLURM_STEP_NUM_TASKS:-}" ]]; then
        return
    fi
    case "$LAUNCHER" in
    horovodrun) command=("$PYTHON" "$ROOT/scripts/horovodrun.py" --gloo -np "$NGPU" "${command[@]}") ;;
    mpirun)
        # OpenMPI kills one second after SIGTERM, which is too soon for a checkpoint.
        command=(mpirun -np "$NGPU" --allow-run-as-root --bind-to none -map-by slot -x LD_LIBRARY_PATH -x PATH
            -mca pml ob1 -mca btl ^openib -mca odls_base_sigkill_timeout 60 "${command[@]}")
        ;;
    esac
}

_check_records() {
    local files
    mapfile -t files < <(compgen -G "$1" || true)
    ((${#files[@]})) || fail "no records match $2=$1; set DATA= to the folder of train-* and val-*"
}

_check_backbone() {
    if [[ -n "${BACKBONE:-}" && "$BACKBONE" != imagenet && ! -e "$BACKBONE" && ! -e "$BACKBONE.index" ]]; then
        fail "BACKBONE=$BACKBONE: there is no such file; wanted 'imagenet', a .h5 file or a checkpoint"
    fi
}

_check_json() {
    [[ -z "${VAL_JSON:-}" || -f "$VAL_JSON" ]] || fail "VAL_JSON=$VAL_JSON: there is no such file; VAL_JSON= alone does without"
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
        ((gpus >= NGPU)) || fail "NGPU=$NGPU, but this machine has $gpus GPUs; set NGPU=, or DEVICE=cpu to go without"
    else
        export CUDA_VISIBLE_DEVICES=""
    fi
    if ((NGPU > 1)) && ! "$PYTHON" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("horovod"))'; then
        fail "NGPU=$NGPU needs Horovod: bash scripts/install_horovod.sh"
    fi
}

# Runs the command with its output on the screen and in MODEL_DIR; SIGTERM reaches it, its exit code is ours.
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
