# shellcheck shell=bash
# --help of the scripts: the first comment of the script. For other scripts to source.

# print_header FILE: print its first comment, without #!, directives and the leading '# '.
print_header() {
    local line
    while IFS= read -r line; do
        [[ "$line" == '#!'* || "$line" == '#SBATCH'* || "$line" == '# shellcheck'* ]] && continue
        [[ "$line" == '#'* ]] || break
        line="${line#'#'}"
        printf '%s\n' "${line# }"
    done <"$1"
}

# require_program PROGRAM HINT: exit with one line if a program is missing.
require_program() {
    command -v "$1" >/dev/null && return
    printf '%s: error: %s is not installed (no %s in PATH); %s\n' "${0##*/}" "$1" "$1" "$2" >&2
    exit 2
}

# takes_no_words WORD...: for scripts without arguments, which read the environment. --help prints the header.
takes_no_words() {
    (($#)) || return 0
    if [[ "$1" == --help || "$1" == -h ]]; then
        print_header "$0"
        exit 0
    fi
    printf "%s: error: unexpected word '%s'; expected none (--help lists the settings)\n" "${0##*/}" "$1" >&2
    exit 2
}
