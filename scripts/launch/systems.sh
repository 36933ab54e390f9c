# shellcheck shell=bash
# Files of numbers, one for each published system: nodes, GPUs of a node, cores, network, batch and rate. Sourced by ../launch.sh.
#
# A file holds lines KEY=VALUE and comments; it is read, not run. SYSTEM= names it.

# system_settings FOLDER: settings of FOLDER/SYSTEM.conf that nobody made otherwise; without SYSTEM the list of what there is.
system_settings() {
    local folder="$1" line key names
    names="$(_systems "$folder")"
    [[ -n "${SYSTEM:-}" ]] || fail "SYSTEM is missing; expected one of $names"
    _check_value SYSTEM "$SYSTEM" name
    [[ " $names " == *" $SYSTEM "* ]] || fail "SYSTEM=$SYSTEM; expected one of $names"
    while IFS= read -r line || [[ -n "$line" ]]; do
        [[ "$line" == *=* && "$line" != '#'* ]] || continue
        key="${line%%=*}"
        [[ -v "$key" ]] || printf -v "$key" '%s' "${line#*=}"
    done <"$folder/$SYSTEM.conf"
    check_values
    : "${NODES:=1}" "${GPUS:=1}"
    : "${NGPU:=$((NODES * GPUS))}" "${EVAL_BS:=$BS}"
}

# train_published_system FOLDER: a recipe of scripts/FOLDER for a system of one node.
train_published_system() {
    system_settings "$ROOT/scripts/$1/systems"
    ((NODES == 1)) || fail "SYSTEM=$SYSTEM has $NODES nodes; expected scripts/$1/run.sub, for sbatch"
    launch train
}

# submit_published_system FOLDER: one for a system of any number, inside a job of sbatch.
submit_published_system() {
    system_settings "$ROOT/scripts/$1/systems"
    submit train
}

_systems() {
    local file names=()
    for file in "$1"/*.conf; do
        file="${file##*/}"
        names+=("${file%.conf}")
    done
    printf '%s' "${names[*]}"
}
