"""Estimate AP on unlabeled images and report drift: `python monitor.py --model=runs/cells --images=this_week`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.monitor_images import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
