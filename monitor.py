"""Estimate AP on unlabeled images and report drift: `python monitor.py --model=runs/cells --images=this_week`."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.monitor import MonitorOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.monitor_images import monitor

    return monitor


define_flags, main = program("monitor", MonitorOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
