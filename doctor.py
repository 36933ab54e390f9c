"""Examine a data set before training and write the findings to doctor.html and doctor.json.

Usage:

    python doctor.py --records='records/train-*' --val_records='records/val-*'
    python doctor.py --records='records/train-*' --image_size=640 --model_name=efficientdet-d1
"""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.doctor import ExamineOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.examine_data import examine

    return examine


define_flags, main = program("doctor", ExamineOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
