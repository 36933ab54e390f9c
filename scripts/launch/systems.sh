# shellcheck shell=bash
# Settings files of published systems: nodes, GPUs per node, cores, network, batch size and learning rate. Sourced by ../launch.sh.
#
# A file has lines KEY=VALUE and comments; it is parsed, not executed. SYSTEM= selects it.

# system_settings FOLDER: read FOLDER/SYSTEM.conf, without overriding settings already made; fail with the list of systems if SYSTEM is not set.
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

# train_published_system FOLDER: run a recipe of scripts/FOLDER on a system of one node.
train_published_system() {
    system_settings "$ROOT/scripts/$1/systems"
    ((NODES == 1)) || fail "SYSTEM=$SYSTEM has $NODES nodes; expected scripts/$1/run.sub, for sbatch"
    launch train
}

# submit_published_system FOLDER: run it on a system of any number of nodes, inside a job of sbatch.
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
