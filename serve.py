"""Serve a detector over HTTP, with a demo page: `python serve.py --model=runs/first`, then http://127.0.0.1:8000/."""

import importlib.util
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends without a traceback; `run` handles it later
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from absl import flags

from efficientdet.configuration.flag_definitions import (
    checked_overrides,
    define_class_names_flag,
    define_model_flags,
    define_runtime_flag,
    finish_flags,
    model_name_given,
    runtime_settings,
)
from efficientdet.configuration.flag_paths import required
from efficientdet.serving.limits import Limits
from program_support.checked_fields import Share, between
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flag, define_flags_of

FLAGS = flags.FLAGS
_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}


def define_flags() -> None:
    """Define the flags of serve.py."""
    define_model_flags()
    define_runtime_flag()
    define_class_names_flag()
    flags.DEFINE_string(
        "model",
        None,
        "Model to serve: a file of export.py (.onnx, .xml or .tflite), a checkpoint (a prefix "
        "or a folder), a SavedModel, or the name of published weights.",
    )
    flags.DEFINE_string("host", "127.0.0.1", "Address to listen on; 0.0.0.0: every address of this machine.")
    define_flag("port", Annotated[int, between(0, 65535)], 8000, "Port to listen on; 0: any free port.")
    define_flags_of(
        Limits,
        {
            "max_batch": "Maximum batch size of the detector.",
            "max_request_bytes": "Maximum size of a request's body in bytes.",
            "max_pixels": "Maximum number of pixels of an image.",
            "max_queue": "Maximum number of waiting images, and of images per request.",
            "request_timeout_s": "Timeout in seconds for receiving a request's body, and again for its detections.",
        },
    )
    define_flag(
        "min_score",
        Share | None,
        None,
        "Lowest score, from 0 to 1, of the returned detections if a request does not "
        "set one; also the initial value of the slider on the demo page. Default: the threshold with the best F1 that "
        f"is stored with the model, else {Limits().min_score:g}.",
    )
    flags.DEFINE_list(
        "allowed_hosts",
        None,
        "Host names that requests may address, comma-separated. Default: the names of "
        "this machine; any name if --host is set to another address.",
    )
    flags.DEFINE_list(
        "allowed_origins", [], "Allowed CORS origins, comma-separated, such as https://example.org; *: all."
    )
    finish_flags("serve")


def main() -> None:
    """Serve as the flags state."""
    path = required(FLAGS.model, "model")
    overrides = checked_overrides()
    runtime = runtime_settings()
    if missing := [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]:
        raise InputError(f"serve.py needs the package {missing[0]}: pip install -e '.[serve]'")
    from efficientdet.prediction.open_model import open_for_serving
    from efficientdet.serving.application import build_application
    from efficientdet.serving.middleware import host_name
    from efficientdet.serving.server import LOCAL_NAMES, bind, serve

    given = {name: FLAGS[name].value for name in vars(Limits()) if FLAGS[name].value is not None}
    limits = Limits(**given)
    bound = bind(FLAGS.host, FLAGS.port)
    detector = open_for_serving(
        path,
        max_batch=limits.max_batch,
        hparams=overrides,
        class_names=FLAGS.class_names or None,
        model_name=FLAGS.model_name if model_name_given() else None,
        **runtime,
    )
    if FLAGS.min_score is None:
        limits = replace(limits, min_score=detector.thresholds.overall)
    source = detector.thresholds.source if FLAGS.min_score is None else "--min_score"
    print(f"score threshold: {limits.min_score:g}, {source}")
    hosts = [host_name(host) or host for host in FLAGS.allowed_hosts or ()]
    serve(
        build_application(
            detector.detect,
            detector.class_names,
            model=Path(path).name,
            limits=limits,
            white_level=detector.white_level,
            hosts=tuple(hosts or (LOCAL_NAMES if FLAGS.host in LOCAL_NAMES else ())),
            origins=tuple(FLAGS.allowed_origins),
        ),
        bound,
        limits,
    )


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
