"""Export a trained detector to standalone files: `python export.py --ckpt=runs/first --output_dir=exported`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.export_model import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
