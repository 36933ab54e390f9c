"""Train on TFRecords: `python train.py --training_file_pattern='DIR/train-*' --val_file_pattern=.. --model_dir=..`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.train import TrainOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.train_model import train

    return train


define_flags, main = program("train", TrainOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True, needs_reader=False)
