# shellcheck shell=bash
# Shared by all recipes (scripts/D0, published systems, benchmarks): settings, checks before the start, and the launch. A recipe
# sets its defaults and calls one verb:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
#   settings "$@"                    # KEY=VALUE words, --dry_run and --flag=value of the command line
#   : "${NGPU:=8}" "${BS:=200}" ...  # defaults of the recipe
#   launch train --training_mode=...
#
# Recipes of published systems read their defaults from a file instead: `system_settings` in launch/systems.sh.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034 # its parts use them
dry_run="" extra=() command=() devices_of_process=""
source "$ROOT/scripts/usage.sh"
for part in settings reading models systems containers commands start; do
    # shellcheck source=/dev/null
    source "$ROOT/scripts/launch/$part.sh"
done
