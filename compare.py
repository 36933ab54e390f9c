"""Compare detectors on the same images: `python compare.py A B --val_file_pattern='DIR/val-*' --output_dir=FOLDER`."""

import itertools
import sys

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.evaluate import CompareOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.compare_models import compare

    return compare


define_flags, main = program("compare", CompareOptions, _operation)

if __name__ == "__main__":
    define_flags()
    words = [f"--models={word}" for word in itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])]
    run(main, [sys.argv[0], *words, *sys.argv[1 + len(words) :]], ends_at_once=True)
