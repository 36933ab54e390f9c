"""Detect objects in images and draw them: `python infer.py --model_dir=DIR --image_path='*.jpg' --output_dir=OUT`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends without a traceback; `run` handles it later.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from efficientdet.operations.infer_images import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
