"""Inspect, export or benchmark a model: `python inspector.py --mode=dry|export|benchmark|video [--ckpt_path=DIR]`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends without a traceback; `run` handles it later.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from efficientdet.operations.inspect_model import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
