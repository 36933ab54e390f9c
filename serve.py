"""Serve a detector over HTTP, with a demo page: `python serve.py --model=runs/first`, then http://127.0.0.1:8000/."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.operations.serve_model import define_flags, main
from program_support.command_line import run

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
