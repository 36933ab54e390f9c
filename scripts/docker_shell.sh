# shellcheck shell=bash
# Shared by docker/interactive.sh and docker/launch.sh: a shell in the image with folders of this machine. DOCKER= names the image.
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"

dry_run=""

refuse() {
    printf '%s: error: %s (--help lists the settings)\n' "${0##*/}" "$*" >&2
    exit 2
}

# folders NAME... -- WORD...: set the variables NAME to the words, in their order.
folders() {
    local names=()
    while [[ "$1" != -- ]]; do
        names+=("$1")
        shift
    done
    shift
    while (($#)); do
        case "$1" in
        --dry_run) dry_run=yes ;;
        --help | -h) takes_no_words "$1" ;;
        -*) refuse "unexpected word '$1'" ;;
        *)
            ((${#names[@]})) || refuse "unexpected word '$1'"
            printf -v "${names[0]}" '%s' "$1"
            names=("${names[@]:1}")
            ;;
        esac
        shift
    done
}

# absolute PATH: print it from the root, as docker needs it; a colon would end it.
absolute() {
    [[ "$1" != *:* ]] || refuse "$1: a colon cannot stand in a container's mounts"
    [[ "$1" == /* ]] && printf '%s' "$1" || printf '%s/%s' "$PWD" "$1"
}

# start_shell WORD...: start the image with these words of docker run, or print the command.
start_shell() {
    local command=(docker run -it --rm --gpus all --shm-size=30g --ulimit memlock=-1 --ulimit stack=67108864 --ipc=host
        "$@" "${DOCKER:-effdet_tf2:latest}" bash) index
    if [[ -n "$dry_run" ]]; then
        printf '%q ' "${command[@]}"
        printf '\n'
        return
    fi
    require_program docker "install Docker with the NVIDIA Container Toolkit"
    for ((index = 0; index < ${#command[@]}; index++)); do # docker would make a missing folder, as root
        [[ "${command[index]}" != -v || -d "${command[index + 1]%%:*}" ]] || refuse "${command[index + 1]%%:*}: there is no such folder"
    done
    exec "${command[@]}"
}
