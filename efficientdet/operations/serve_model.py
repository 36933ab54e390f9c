"""The operation of serve.py: open a detector and serve it over HTTP."""

import datetime
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from efficientdet.configuration.flag_definitions import program
from efficientdet.configuration.flag_paths import required
from efficientdet.configuration.model_settings import checked_overrides, runtime_settings
from efficientdet.options.serve import RequestLimits, ServeOptions
from program_support.checked_fields import values_of
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.serving.background_training import LabelStudio
    from efficientdet.serving.batching import ServedModel
    from efficientdet.serving.label_studio import LabelStudioBackend

_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus-client",
}


def serve_model(options: ServeOptions) -> None:
    """Serve as the options state."""
    path, studio = _model_path(options), _studio(options)
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
            threshold=options.threshold,
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

    bound = bind(options.host, options.port)
    model = opened(path) if path else None
    limits = RequestLimits(**values_of(options, RequestLimits))
    hosts = [host_name(host) or host for host in options.allowed_hosts or ()]
    serve(
        build_application(
            model,
            limits=limits,
            hosts=tuple(hosts or (LOCAL_NAMES if options.host in LOCAL_NAMES else ())),
            origins=options.allowed_origins,
            label_studio=_backend(studio, options, limits, opened) if studio else None,
        ),
        bound,
        limits,
    )


def _model_path(options: ServeOptions) -> str | None:
    """Return the model to serve; None before the first training of --train_dir."""
    if options.train_dir and not options.label_studio:
        raise InputError("--train_dir is for --label_studio, whose annotations it trains on")
    if options.model or not options.train_dir:
        return required(options.model, "model")
    trained = _trained_model(options.train_dir)
    return str(trained) if trained.exists() else None


def _trained_model(folder: str) -> Path:
    return Path(folder, "exported", "detector.onnx")


def _version(path: str) -> str:
    """Return the time of a model's file, which differs after each training."""
    try:
        return datetime.datetime.fromtimestamp(Path(path).stat().st_mtime).isoformat(" ", "seconds")
    except OSError:  # the prefix of a checkpoint, or a name of published weights
        return ""


def _studio(options: ServeOptions) -> "LabelStudio | None":
    if not options.label_studio:
        return None
    from efficientdet.serving.background_training import API_KEY_VARIABLE, LabelStudio

    if not (key := os.environ.get(API_KEY_VARIABLE, "").strip()):
        raise InputError(
            f"--label_studio needs the environment variable {API_KEY_VARIABLE}, the key of one of its users"
        )
    return LabelStudio(options.label_studio, key)


def _backend(
    studio: "LabelStudio", options: ServeOptions, limits: RequestLimits, opened: "Callable[[str], ServedModel]"
) -> "LabelStudioBackend":
    from efficientdet.quickstart.output_folder import wait_for_quickstart
    from efficientdet.quickstart.programs import program_command
    from efficientdet.serving.background_training import BackgroundTraining
    from efficientdet.serving.label_studio import LabelStudioBackend

    training = None
    if folder := options.train_dir:
        training = BackgroundTraining(
            studio,
            Path(folder),
            minutes=options.train_minutes,
            changes=options.train_after,
            limits=limits,
            command=partial(program_command, "quickstart"),
            wait=partial(wait_for_quickstart, Path(folder)),
            load=lambda: opened(str(_trained_model(folder))),
        )
    return LabelStudioBackend(studio, limits, training)


define_flags, main = program("serve", ServeOptions, serve_model)
