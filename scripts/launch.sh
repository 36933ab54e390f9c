# shellcheck shell=bash
# What every recipe under scripts/D0, of published systems and of benchmarks shares: settings, checks before anything starts, and
# the launch. A recipe sets its numbers as defaults and calls one verb:
#
#   source "$(dirname "${BASH_SOURCE[0]}")/../launch.sh"
#   settings "$@"                    # KEY=VALUE words, --dry_run and --flag=value of the command line
#   : "${NGPU:=8}" "${BS:=200}" ...  # the recipe's numbers, where nobody said otherwise
#   launch train --training_mode=...
#
# Or it reads them from a file of numbers, one for each published system: `system_settings` in launch/systems.sh.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
# shellcheck disable=SC2034 # its parts use them
dry_run="" extra=() command=()
source "$ROOT/scripts/usage.sh"
for part in settings models systems commands start; do
    # shellcheck source=/dev/null
    source "$ROOT/scripts/launch/$part.sh"
done
