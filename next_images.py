"""Choose the images to label next: `python next_images.py --model=runs/cells --images=pool --count=50`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.next_images import NextImagesOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.choose_images import choose_images

    return choose_images


define_flags, main = program(
    "next_images",
    NextImagesOptions,
    _operation,
    format="efficientdet.inference.result_files:FORMATS",
)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
