"""Evaluate a checkpoint on TFRecords: `python eval.py --ckpt=DIR --val_file_pattern='DIR/val-*'`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.evaluate import EvaluateOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.evaluate_model import evaluate

    return evaluate


define_flags, main = program("evaluate", EvaluateOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
