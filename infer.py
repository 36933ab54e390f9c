"""Detect objects in images and draw them: `python infer.py --model_dir=DIR --image_path='*.jpg' --output_dir=OUT`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.infer_images import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
