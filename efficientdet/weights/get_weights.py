"""Download and check published weights, for scripts/get_weights.sh. Needs only the standard library."""

import signal
import sys
from pathlib import Path

from efficientdet.families.published_files import published_files, table
from efficientdet.weights.downloads import cache_folder, cached_weights
from program_support.errors import InputError, nearest_name
from program_support.signals import exit_code

_USAGE = """Download and check a file of published weights, for --backbone_init=NAME and --pretrained_ckpt=NAME.

    bash scripts/get_weights.sh                 list the names
    bash scripts/get_weights.sh NAME            download into ~/.cache/efficientdet/weights
    bash scripts/get_weights.sh NAME FOLDER     download into a folder

An interrupted download is resumed. Environment: EFFICIENTDET_WEIGHTS (another folder), EFFICIENTDET_WEIGHTS_URL
(a mirror with the same file names), https_proxy."""
USER_ERROR_EXIT_CODE = 2  # same as in program_support/command_line.py, which needs absl


def main(words: list[str]) -> int:
    """Download and check a file, or list the names; return the exit code."""
    if {"-h", "--help"} & {*words}:
        print(_USAGE)
        return 0
    if not words:
        print(*table(), sep="\n")
        return 0
    try:
        name, *rest = words
        if unexpected := [word for word in words if word.startswith("-")] + rest[1:]:
            raise InputError(f"unexpected word {unexpected[0]!r}; expected NAME and FOLDER")
        if name not in published_files():
            nearest = nearest_name(name, published_files())
            hint = f"the nearest is {nearest}; " if nearest else ""
            raise InputError(f"{name}: is not a name of published weights; {hint}run without a name to list all")
        path = cached_weights(published_files()[name], Path(rest[0]) if rest else cache_folder())
        print(f"{path}: intact")
    except InputError as error:
        print(f"get_weights.sh: error: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except KeyboardInterrupt:
        print("get_weights.sh: ended by Ctrl-C; run it again to resume", file=sys.stderr)
        return exit_code(signal.SIGINT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
