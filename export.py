"""Export a trained detector to standalone files: `python export.py --ckpt=runs/first --output_dir=exported`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.export import ExportOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.export_model import export

    return export


define_flags, main = program(
    "export",
    ExportOptions,
    _operation,
    formats="efficientdet.options.model:export_formats",
)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
