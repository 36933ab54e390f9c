"""The operation of serve.py: open a detector and serve it over HTTP."""

import datetime
import importlib.util
from pathlib import Path

from efficientdet.configuration.flag_paths import required
from efficientdet.configuration.model_config import checked_overrides, runtime_settings
from efficientdet.options.serve import ServeOptions
from efficientdet.quickstart.output_folder import exported_model
from program_support.errors import InputError
from program_support.plugins import load_plugins

_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}


def serve_model(options: ServeOptions) -> None:
    """Serve a detector over HTTP until SIGTERM or Ctrl-C."""
    path = _model_path(options)
    overrides = checked_overrides(options)
    runtime = runtime_settings(options)
    if missing := [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]:
        raise InputError(f"serve.py needs the package {missing[0]}: pip install -e '.[serve]'")
    from efficientdet.prediction.open_model import open_for_serving
    from efficientdet.serving.application import build_application, host_name
    from efficientdet.serving.batching import ServedModel
    from efficientdet.serving.server import LOCAL_NAMES, bind, serve

    def opened(path: str) -> ServedModel:
        detector = open_for_serving(
            path,
            max_batch=options.max_batch,
            hparams=overrides,
            class_names=options.class_names or None,
            model_name=options.model_name,
            calibrated_scores=options.calibrated_scores,
            **runtime,
        )
        given, thresholds = options.min_score, detector.thresholds
        min_score, source = (given, "--min_score") if given is not None else (thresholds.overall, thresholds.source)
        print(f"score threshold: {min_score:.4g}, {source}", flush=True)
        return ServedModel(
            detect=detector.detect,
            class_names=detector.class_names,
            name=Path(path).name,
            min_score=min_score,
            value_range=detector.value_range,
            version=_version(path),
        )

    routes = [made for make in load_plugins("efficientdet.server_routes") if (made := make(options, opened))]
    bound = bind(options.host, options.port)
    model = opened(path) if path else None
    hosts = [host_name(host) or host for host in options.allowed_hosts or ()]
    serve(
        build_application(
            model,
            limits=options,
            hosts=tuple(hosts or (LOCAL_NAMES if options.host in LOCAL_NAMES else ())),
            origins=options.allowed_origins,
            added_routes=routes,
        ),
        bound,
        options,
    )


def _model_path(options: ServeOptions) -> str | None:
    """Return the model to serve; None before the first training of --train_dir."""
    if options.model or not options.train_dir:
        return required(options.model, "model")
    trained = exported_model(Path(options.train_dir))
    return str(trained) if trained.exists() else None


def _version(path: str) -> str:
    """Return the time of a model's file, which differs after each training."""
    try:
        return datetime.datetime.fromtimestamp(Path(path).stat().st_mtime).isoformat(" ", "seconds")
    except OSError:  # the prefix of a checkpoint, or a name of published weights
        return ""
