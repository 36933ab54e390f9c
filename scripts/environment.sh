# shellcheck shell=bash
# The Python environment of this project in .venv, created if it is missing. For other scripts to source:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
#   use_environment         # or: use_environment test, for an extra of pyproject.toml; install.sh does this for users
#   "$PYTHON" train.py ...
#
# Sourcing only defines REPOSITORY (its root), PYTHON (the interpreter in .venv) and LOCK.

REPOSITORY="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
PYTHON="$REPOSITORY/.venv/bin/python"
LOCK="$REPOSITORY/requirements.lock" # the versions of all packages; remove it to install the newest
# Installed with the extras track and test, without its dependencies: opencv-python would replace the files of
# opencv-python-headless by ones that need libGL. The others are in the extra.
_TRACKERS="trackers==2.6.1"

# use_environment [EXTRA[,EXTRA...]]: install the packages of pyproject.toml with these extras. Exits with 2 and one line on failure.
# Calls at the same time wait for each other.
use_environment() {
    local extra="${1:-}"
    _lock_environment
    if ! _has_pip "$PYTHON"; then
        _make_environment
    elif ! _is_suitable "$PYTHON"; then
        _give_up "$REPOSITORY/.venv has $("$PYTHON" --version); expected Python 3.11 to 3.13: remove that folder"
    fi
    if ! _is_installed "$extra"; then
        _install "$extra"
    fi
    _unlock_environment
}

# The lock is on a file that always exists. It is opened for writing because network file systems require that.
_lock_environment() {
    exec 9<>"$REPOSITORY/pyproject.toml"
    flock 9 || _give_up "cannot lock $REPOSITORY/pyproject.toml"
}

_unlock_environment() {
    exec 9>&-
}

_give_up() {
    printf '%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 2
}

_is_suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

_has_pip() {
    "$1" -m pip --version >/dev/null 2>&1
}

# Prints the newest suitable Python that can make environments.
_find_python() {
    local candidate without_venv=""
    for candidate in python3.13 python3.12 python3.11 python3; do
        _is_suitable "$candidate" || continue # absent, too old, too new, or the shim of a version manager without one
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return
        fi
        without_venv="${without_venv:-$candidate}"
    done
    if [[ -n "$without_venv" ]]; then
        local version
        version="$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
        _give_up "$without_venv lacks its venv module; install it, for example: apt install python3-venv python$version-venv"
    fi
    _give_up "no Python 3.11 to 3.13 found ($(python3 --version 2>&1 || true)); install one, for example:" \
        "apt install python3.12 python3.12-venv"
}

_make_environment() {
    local folder="$REPOSITORY/.venv" python message
    python="$(_find_python)" || exit 2
    if [[ -e "$folder" && ! -e "$folder/pyvenv.cfg" ]]; then
        _give_up "$folder exists but is not a Python environment; move it away"
    fi
    printf 'making %s with %s\n' "$folder" "$("$python" --version)"
    # --clear: the remains of an interrupted call are unusable.
    if ! message="$("$python" -m venv --clear "$folder" 2>&1)"; then
        rm -rf "$folder"
        _give_up "$python -m venv failed: ${message//$'\n'/ }"
    fi
}

# The installed state of an extra: packages, versions, and the folder, as an editable install points to a folder.
_expected_state() {
    printf '%s %s\n' "$(sha256sum <"$REPOSITORY/pyproject.toml")" "$REPOSITORY"
    [[ ! -f "$LOCK" ]] || sha256sum <"$LOCK"
}

_stamp() {
    printf '%s/.venv/.installed%s\n' "$REPOSITORY" "${1:+-$1}"
}

_is_installed() {
    local stamp
    stamp="$(_stamp "$1")"
    [[ -f "$stamp" && "$(<"$stamp")" == "$(_expected_state)" ]]
}

_install() {
    local extra="$1" log="$REPOSITORY/.venv/install.log" start=$SECONDS
    printf 'installing into .venv (some minutes the first time; log: %s)\n' "$log"
    _logged "$log" _install_editable "$extra" || _give_up "cannot install: $(_why "$log") (log: $log)"
    if [[ ",$extra," == *,track,* || ",$extra," == *,test,* ]]; then
        _logged "$log" _install_trackers || _give_up "cannot install: $(_why "$log") (log: $log)"
    fi
    _expected_state >"$(_stamp "$extra")"
    printf 'installed in %d s\n' "$((SECONDS - start))"
}

_install_editable() {
    local versions=()
    cd "$REPOSITORY" || return
    [[ ! -f "$LOCK" ]] || versions=(--constraint "$LOCK")
    exec "$PYTHON" -m pip install --disable-pip-version-check --no-input --progress-bar off \
        "${versions[@]}" --editable ".${1:+[$1]}"
}

_install_trackers() {
    exec "$PYTHON" -m pip install --disable-pip-version-check --no-input --progress-bar off --no-deps "$_TRACKERS"
}

# _logged LOG COMMAND...: run it with its output in that file, and print its progress periodically. A signal to this script also
# ends the command, and its process group if it leads one.
_logged() {
    local log="$1" job ticker status=0
    shift
    : >"$log"
    _tick "$log" 8>&- 9>&- & # without the locks of this script and of install_horovod.sh
    ticker=$!
    "$@" >"$log" 2>&1 9>&- </dev/null &
    job=$!
    trap '_end "$ticker" "$job"; exit 130' INT
    trap '_end "$ticker" "$job"; exit 143' TERM
    wait "$job" 2>/dev/null || status=$? # bash would print the name of a killed command
    trap - INT TERM
    _end "$ticker"
    return "$status"
}

# _end TICKER [JOB]. The ticker gets SIGKILL: after SIGTERM, bash may print an error if this script has a trap on EXIT.
_end() {
    kill -KILL "$1" 2>/dev/null || true
    if (($# == 2)); then
        kill -TERM -- "-$2" 2>/dev/null || kill -TERM "$2" 2>/dev/null || true
    fi
    wait "$@" 2>/dev/null || true
}

# Print the progress of a command by its log: on a terminal a line that changes, elsewhere a line every 20 s.
_tick() {
    local log="$1" last ticks=0
    while sleep 1 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do # a sleep outlives us: it must not hold our output open
        ticks=$((ticks + 1))
        if [[ -t 1 ]]; then
            last="$(_last_step "$log")"
            printf '\r%3d s  %-70.70s\r' "$ticks" "${last##*[$'\r']}"
        elif ((ticks % 20 == 0)); then
            printf '%3d s  %.110s\n' "$ticks" "$(_last_step "$log")"
        fi
    done
}

# A script whose progress is not in the last line of its log defines its own.
_last_step() {
    tail -n 1 "$1" 2>/dev/null
}

# Print the reason of a failure, one line, from pip's log.
_why() {
    local line reason="pip failed" text
    while IFS= read -r line; do
        [[ "$line" == ERROR:* ]] && reason="${line#ERROR: }"
    done <"$1"
    text="$(<"$1")"
    case "$text" in
    *"Temporary failure in name resolution"* | *"Name or service not known"* | *"Failed to establish a new connection"* | \
        *"Network is unreachable"* | *"Connection refused"* | *"timed out"* | *"ProxyError"*)
        reason="the package index cannot be reached (network or proxy?); $reason"
        ;;
    *"No space left on device"*) reason="no space left on the device; expected about 3 GB" ;;
    esac
    printf '%s' "$reason"
}
