"""Choose the images to label next: `python next_images.py --model=runs/cells --images=pool --count=50`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.choose_images import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
