"""Detect objects in images and draw them: `python infer.py --model_dir=DIR --image_path='*.jpg' --output_dir=OUT`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.infer import InferOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.infer_images import infer

    return infer


define_flags, main = program(
    "infer",
    InferOptions,
    _operation,
    format="efficientdet.inference.result_files:FORMATS",
)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
