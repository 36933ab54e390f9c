# shellcheck shell=bash disable=SC2034
# Settings of a recipe: which there are, what their values must look like, where they come from. Sourced by ../launch.sh.
#
# A setting comes from a KEY=VALUE word after the command, else from the environment, else from the recipe. No value is ever
# evaluated: numbers are checked to be numbers before any arithmetic, which in bash would run a command inside a subscript.

declare -A WANTED=( # setting -> what its value must look like; a setting without a value is not checked
    [NGPU]=count [NODES]=count [GPUS]=count [CORES]=count [EVAL_BS]=count [EPOCHS]=count [STEPS]=count [EXAMPLES]=count
    [RUNS]=count [BS]=count [EVAL_PERIOD]=count [CHECKPOINT_PERIOD]=count [BN_GROUP]=count
    [STOP_EPOCH]=natural [EVAL_SAMPLES]=natural [SEED]=natural [EVAL_FROM]=natural
    [LR]=decimal [LR_PER_32]=decimal [WARMUP]=decimal [EMA]=decimal [MOMENTUM]=decimal [DECAY]=decimal [TARGET_AP]=decimal
    [EVAL_EPOCHS]=counts [DROPS]=decimals [NETWORK]=name [SYSTEM]=name
    [AMP]=boolean [XLA]=boolean
    [DEVICE]="cpu gpu" [LAUNCHER]="horovodrun mpirun" [CONTAINER]="pyxis apptainer singularity none"
    [PRECISION]="float32 mixed_float16 mixed_bfloat16" [training_mode]="train train300 traineval"
)
LAUNCH_KEYS=(DATA TRAIN VAL VAL_JSON CKPT MODEL_DIR BACKBONE MODEL SYSTEM NODES GPUS NGPU CORES NETWORK DEVICE BS
    EVAL_BS EPOCHS STOP_EPOCH STEPS LR LR_PER_32 WARMUP DECAY DROPS BN_GROUP EMA MOMENTUM AMP PRECISION XLA EXAMPLES
    EVAL_SAMPLES EVAL_FROM EVAL_PERIOD EVAL_EPOCHS CHECKPOINT_PERIOD TARGET_AP HPARAMS SEED LAUNCHER IMAGE OUTPUT RUNS
    MLPERF_LOG training_mode PYTHON CONTAINER IMAGE_TAG checkpointdir datadir)

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
    _show_systems
    printf '  --flag=value  handed on to the program; its own --help lists them\n'
    printf '  --dry_run     prints the command that would run\n'
}

# The published systems beside a recipe, with what each file says of itself.
_show_systems() {
    local file line
    for file in "$(dirname "$0")"/systems/*.conf; do
        [[ -f "$file" ]] || continue
        read -r line <"$file"
        file="${file##*/}"
        printf '  %-36s %s\n' "SYSTEM=${file%.conf}" "${line#'# '}"
    done
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
    counts) pattern='^[1-9][0-9]{0,5}(,[1-9][0-9]{0,5}){0,99}$' wanted="whole numbers such as 40,50,55" ;;
    decimals) pattern='^[0-9]{1,6}(\.[0-9]{1,6})?,[0-9]{1,6}(\.[0-9]{1,6})?$' wanted="two numbers such as 40,50" ;;
    name) pattern='^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' wanted="a name of letters, digits, dots and hyphens" ;;
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
