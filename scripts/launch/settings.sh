# shellcheck shell=bash disable=SC2034
# Settings of a recipe: names, allowed values and sources. Sourced by ../launch.sh.
#
# A setting comes from a KEY=VALUE argument, else from the environment, else from the recipe. Its name may be in any case, or be
# the name in a reference's documents (docs/reference/settings.md). No value is ever evaluated: numbers are validated before any
# arithmetic, which in bash would run a command inside a subscript.

declare -A EXPECTED=( # setting -> type of its value; an empty value is not checked
    [NGPU]=count [NODES]=count [GPUS]=count [CORES]=count [EVAL_BS]=count [EPOCHS]=count [STEPS]=count [EXAMPLES]=count
    [RUNS]=count [BS]=count [EVAL_PERIOD]=count [CHECKPOINT_PERIOD]=count [BN_GROUP]=count
    [STOP_EPOCH]=natural [EVAL_SAMPLES]=natural [SEED]=natural [EVAL_FROM]=natural
    [LR]=decimal [LR_PER_32]=decimal [WARMUP]=decimal [EMA]=decimal [MOMENTUM]=decimal [DECAY]=decimal [TARGET_AP]=decimal
    [EVAL_EPOCHS]=counts [DROPS]=decimals [NETWORK]=name [SYSTEM]=name
    [AMP]=boolean [XLA]=boolean
    [DEVICE]="cpu gpu" [ENGINE]="horovod jax" [LAUNCHER]="horovodrun mpirun" [CONTAINER]="pyxis apptainer singularity docker none"
    [PRECISION]="float32 mixed_float16 mixed_bfloat16" [training_mode]="train train300 traineval"
)
LAUNCH_KEYS=(DATA TRAIN VAL VAL_JSON CKPT MODEL_DIR BACKBONE MODEL SYSTEM NODES GPUS NGPU CORES NETWORK DEVICE ENGINE BS
    EVAL_BS EPOCHS STOP_EPOCH STEPS LR LR_PER_32 WARMUP DECAY DROPS BN_GROUP EMA MOMENTUM AMP PRECISION XLA EXAMPLES
    EVAL_SAMPLES EVAL_FROM EVAL_PERIOD EVAL_EPOCHS CHECKPOINT_PERIOD TARGET_AP HPARAMS SEED LAUNCHER IMAGE OUTPUT RUNS
    MLPERF_LOG training_mode PYTHON CONTAINER IMAGE_TAG checkpointdir datadir BACKBONE_CKPT WEIGHTS_DIR)
declare -A ALIASES=( # names in the references' documents -> settings
    [LOGDIR]=checkpointdir [CONT]=IMAGE_TAG [PRETRAINED_DIR]=WEIGHTS_DIR [BACKBONE_DIR]=WEIGHTS_DIR [BATCHSIZE]=BS
    [NUMEPOCHS]=EPOCHS [WARMUP_EPOCHS]=WARMUP [DGXSYSTEM]=SYSTEM [DGXNNODES]=NODES [DGXNGPU]=GPUS
)
declare -A REFUSED=( # names in the references' documents without a counterpart -> what to do instead
    [EXTRA_PARAMS]="holds flags of another program; unset it and pass flags of train.py as --flag=value words"
    [NEXP]="a job is one run; scripts/seeds.sh N RECIPE starts N of them, each with its own SEED= and MODEL_DIR="
)
declare -A SETTING_OF_FLAG=( # flags that other values follow from: the learning rate, default values, names of files
    [batch_size]=BS [lr]=LR [model_name]=MODEL [mlperf_log]=MLPERF_LOG [val_json_file]=VAL_JSON [amp]=AMP [precision]=PRECISION
    [use_xla]=XLA [checkpoint_period]=CHECKPOINT_PERIOD [eval_period]=EVAL_PERIOD [eval_from]=EVAL_FROM [eval_epochs]=EVAL_EPOCHS
)
declare -A GIVEN=() # setting -> the name under which the user gave it; recipes set defaults for the others

fail() {
    printf '%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

# settings WORD...: read the environment and the command line; an unknown key is an error that names the nearest known one.
settings() {
    local word key flag
    _index_names
    _read_environment
    for word; do
        case "$word" in
        --dry_run | --dry-run) dry_run=yes ;;
        --help | -h)
            _usage
            exit 0
            ;;
        --*)
            _read_flag "${word#--}"
            extra+=("$word")
            ;;
        NEXP=1) ;; # one run per job, as here
        *=*)
            key="${word%%=*}"
            [[ "$key" =~ ^[A-Za-z0-9_]+$ && -n "${SETTING_BY_NAME[${key,,}]:-}" ]] || _fail_unknown "$key" "${word#*=}"
            give "${SETTING_BY_NAME[${key,,}]}" "$key" "${word#*=}"
            ;;
        *) fail "unexpected word '$word'; expected KEY=VALUE, --flag=value or --dry_run" ;;
        esac
    done
}

# give SETTING NAME VALUE: set it to the user's value, given under this name.
give() {
    printf -v "$1" '%s' "$3"
    GIVEN["$1"]="$2"
}

# _read_flag FLAG[=VALUE]: also set the setting of a flag of the program, if it has one.
_read_flag() {
    local name="${1%%=*}" value="${1#*=}"
    if [[ "$1" != *=* ]]; then # a switch
        name="${1#no}" value=True
        [[ "$1" == "$name" ]] || value=False
        [[ "$name" == amp || "$name" == use_xla ]] || return 0
    fi
    [[ "$name" =~ ^[a-z_]+$ && -n "${SETTING_OF_FLAG[$name]:-}" ]] || return 0
    give "${SETTING_OF_FLAG[$name]}" "--$name" "$value"
}

# _index_names: fill SETTING_BY_NAME, from each accepted name in lower case to its setting.
declare -A SETTING_BY_NAME=()
_index_names() {
    local key
    for key in "${LAUNCH_KEYS[@]}"; do
        SETTING_BY_NAME["${key,,}"]="$key"
    done
    for key in "${!ALIASES[@]}"; do
        SETTING_BY_NAME["${key,,}"]="${ALIASES[$key]}"
    done
}

_fail_unknown() {
    [[ "$1" =~ ^[A-Z_]+$ && -n "${REFUSED[$1]:-}" ]] && fail "$1=$2: ${REFUSED[$1]}"
    fail "unknown setting $1$(_nearest "$1"); expected one of ${LAUNCH_KEYS[*]}"
}

# _read_environment: settings that the environment has under another case or a reference's name. Two values for one setting are
# an error. `container` and `system` belong to container and package managers, which set them.
_read_environment() {
    local name key given=()
    [[ -z "${NEXP:-}" || "$NEXP" == 1 ]] || fail "NEXP=$NEXP: ${REFUSED[NEXP]}"
    [[ -z "${EXTRA_PARAMS:-}" ]] || fail "EXTRA_PARAMS=$EXTRA_PARAMS: ${REFUSED[EXTRA_PARAMS]}"
    mapfile -t given < <(compgen -e)
    for name in "${given[@]}"; do
        case "$name" in
        container | system) continue ;;
        esac
        key="${SETTING_BY_NAME[${name,,}]:-}"
        [[ -n "$key" ]] || continue
        [[ "$name" == PYTHON ]] || GIVEN["$key"]="$name" # other programs have a variable PYTHON; a container has its own
        [[ "$key" != "$name" ]] || continue
        [[ ! -v "$key" || "${!key}" == "${!name}" ]] ||
            fail "$name=${!name} and $key=${!key} are one setting; expected one of the two names, or one value"
        printf -v "$key" '%s' "${!name}"
    done
}

# Print the first comment of the recipe, its defaults and its arguments.
_usage() {
    local numbers=() verb
    print_header "$0"
    verb="$(grep -oE '(launch|submit) (evaluate|benchmark_training|infer|inspect)' "$0" || true)"
    verb="${verb##* }"
    mapfile -t numbers < <(grep -oE '\$\{[A-Za-z_]+:?=[^}]*\}' "$0" | sed -E 's/^\$\{([A-Za-z_]+):?=/\1=/; s/\}$//')
    printf '\nusage: bash %s [KEY=VALUE ...] [--flag=value ...] [--dry_run]\n' "$0"
    printf '  KEY=VALUE     a setting, also read from the environment, its name in any case; one of\n'
    printf '%s\n' "$(settings_read "$0" "${verb:-train}")" | fold -s -w 100 | sed 's/^/                /'
    ((${#numbers[@]} == 0)) || printf '  defaults here:    %s\n' "${numbers[*]}"
    _show_systems
    printf '  --flag=value  passed to the program; its --help lists the flags\n'
    printf '  --dry_run     print the command without running it\n'
}

# Print the published systems beside a recipe, with the first comment of each file.
_show_systems() {
    local file line
    for file in "$(dirname "$0")"/systems/*.conf; do
        [[ -f "$file" ]] || continue
        read -r line <"$file"
        file="${file##*/}"
        printf '  %-36s %s\n' "SYSTEM=${file%.conf}" "${line#'# '}"
    done
}

# check_values: fail if a setting has a value of another type than expected.
check_values() {
    local key
    for key in "${!EXPECTED[@]}"; do
        [[ -z "${!key:-}" ]] || _check_value "$key" "${!key}" "${EXPECTED[$key]}"
    done
}

# Numbers have at most nine digits: longer ones overflow the arithmetic of a shell.
_check_value() {
    local key="$1" value="$2" kind="$3" pattern expected
    case "$kind" in
    count) pattern='^[1-9][0-9]{0,8}$' expected="a whole number from 1 on" ;;
    natural) pattern='^(0|[1-9][0-9]{0,8})$' expected="a whole number from 0 on" ;;
    decimal) pattern='^([0-9]{1,9}(\.[0-9]{0,17})?|\.[0-9]{1,17})([eE][-+]?[0-9]{1,2})?$' expected="a number such as 0.08" ;;
    counts) pattern='^[1-9][0-9]{0,5}(,[1-9][0-9]{0,5}){0,99}$' expected="whole numbers such as 40,50,55" ;;
    decimals) pattern='^[0-9]{1,6}(\.[0-9]{1,6})?,[0-9]{1,6}(\.[0-9]{1,6})?$' expected="two numbers such as 40,50" ;;
    name) pattern='^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$' expected="a name of letters, digits, dots and hyphens" ;;
    boolean) pattern='^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee]|1|0)$' expected="True or False" ;;
    *) pattern="^(${kind// /|})\$" expected="one of $kind" ;;
    esac
    [[ "$value" =~ $pattern ]] || fail "$key=$value; expected $expected"
}

# Print ", did you mean KEY?" for the key of the nearest length that the given one begins with, or the other way round.
_nearest() {
    local key best="" least=99 difference
    [[ -n "$1" ]] || return 0
    for key in "${LAUNCH_KEYS[@]}" "${!ALIASES[@]}"; do
        difference=$((${#key} > ${#1} ? ${#key} - ${#1} : ${#1} - ${#key}))
        if [[ ("${key,,}" == "${1,,}"* || "${1,,}" == "${key,,}"*) && $difference -lt $least ]]; then
            best="$key" least=$difference
        fi
    done
    [[ -z "$best" ]] || printf ', did you mean %s?' "$best"
}
