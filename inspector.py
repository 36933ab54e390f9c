"""Inspect, export or benchmark a model: `python inspector.py --mode=dry|export|benchmark|video [--ckpt_path=DIR]`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.export import InspectOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.inspect_model import inspect

    return inspect


define_flags, main = program("inspector", InspectOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
