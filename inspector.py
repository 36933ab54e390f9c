"""Inspect, export or benchmark a model: `python inspector.py --mode=dry|export|benchmark|video [--ckpt_path=DIR]`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.inspect_model import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
