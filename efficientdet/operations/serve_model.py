"""The operation of serve.py: open a detector and serve it over HTTP."""

import importlib.util
from pathlib import Path

from efficientdet.configuration.flag_definitions import program
from efficientdet.configuration.flag_paths import required
from efficientdet.configuration.model_settings import checked_overrides, runtime_settings
from efficientdet.options.serve import RequestLimits, ServeOptions
from efficientdet.serving.limits import Limits
from program_support.checked_fields import values_of
from program_support.errors import InputError

_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}


def serve_model(options: ServeOptions) -> None:
    """Serve as the options state."""
    path = required(options.model, "model")
    overrides = checked_overrides(options)
    runtime = runtime_settings(options)
    if missing := [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]:
        raise InputError(f"serve.py needs the package {missing[0]}: pip install -e '.[serve]'")
    from efficientdet.prediction.open_model import open_for_serving
    from efficientdet.serving.application import build_application
    from efficientdet.serving.middleware import host_name
    from efficientdet.serving.server import LOCAL_NAMES, bind, serve

    bound = bind(options.host, options.port)
    detector = open_for_serving(
        path,
        max_batch=options.max_batch,
        hparams=overrides,
        class_names=options.class_names or None,
        model_name=options.model_name,
        threshold=options.threshold,
        **runtime,
    )
    thresholds, min_score = detector.thresholds, options.min_score
    limits = Limits(
        min_score=thresholds.overall if min_score is None else min_score, **values_of(options, RequestLimits)
    )
    source = thresholds.source if min_score is None else "--min_score"
    print(f"score threshold: {limits.min_score:g}, {source}")
    hosts = [host_name(host) or host for host in options.allowed_hosts or ()]
    serve(
        build_application(
            detector.detect,
            detector.class_names,
            model=Path(path).name,
            limits=limits,
            white_level=detector.white_level,
            hosts=tuple(hosts or (LOCAL_NAMES if options.host in LOCAL_NAMES else ())),
            origins=options.allowed_origins,
        ),
        bound,
        limits,
    )


define_flags, main = program("serve", ServeOptions, serve_model)
