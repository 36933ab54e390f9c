# shellcheck shell=bash
# --help of the scripts: what a script says of itself in its first comment. For other scripts to source.

# print_header FILE: its first comment, without #!, directives and the leading '# '.
print_header() {
    local line
    while IFS= read -r line; do
        [[ "$line" == '#!'* || "$line" == '#SBATCH'* || "$line" == '# shellcheck'* ]] && continue
        [[ "$line" == '#'* ]] || break
        line="${line#'#'}"
        printf '%s\n' "${line# }"
    done <"$1"
}

# require_program PROGRAM HINT: end with one line where a program is missing.
require_program() {
    command -v "$1" >/dev/null && return
    printf '%s: error: %s is not installed (no %s in PATH); %s\n' "${0##*/}" "$1" "$1" "$2" >&2
    exit 2
}

# takes_no_words WORD...: for scripts that are told everything by the environment. --help prints the header.
takes_no_words() {
    (($#)) || return 0
    if [[ "$1" == --help || "$1" == -h ]]; then
        print_header "$0"
        exit 0
    fi
    printf "%s: error: unexpected word '%s'; expected none (--help says what can be set)\n" "${0##*/}" "$1" >&2
    exit 2
}
