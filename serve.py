"""Serve a detector over HTTP, with a demo page: `python serve.py --model=runs/first`, then http://127.0.0.1:8000/."""

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from efficientdet.configuration.program_flags import program
from efficientdet.options.serve import ServeOptions
from program_support.command_line import run


def _operation():
    from efficientdet.operations.serve_model import serve_model

    return serve_model


define_flags, main = program("serve", ServeOptions, _operation)

if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
