"""Train and export a detector from a folder or archive of labeled images: `python quickstart.py FOLDER_OR_ARCHIVE`.

Converts and examines the images, chooses settings for the data and this machine, trains, evaluates and exports. Logs
each choice with its reason and each command. The same command resumes after an interruption; with more --minutes it
trains longer.
"""

import sys

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.quickstart import QuickstartOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.quick_start import run_quickstart

    return run_quickstart


define_flags, main = program(
    "quickstart",
    QuickstartOptions,
    _operation,
    formats="efficientdet.options.model:export_formats",
)

if __name__ == "__main__":
    define_flags()
    folder, rest = sys.argv[1:2], sys.argv[2:]
    run(main, [sys.argv[0], *(f"--images={word}" if not word.startswith("-") else word for word in folder), *rest])
