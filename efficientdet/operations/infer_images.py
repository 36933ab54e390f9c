"""The operation of infer.py: turn options into a configuration and detect in images, videos or a camera."""

import contextlib
import sys
from typing import Any

from dataset.input.tiling import TILE_OVERLAP, Tiling
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import required, writable_folder
from efficientdet.configuration.model_config import (
    checked_overrides,
    first_given,
    model_config,
    runtime_settings,
)
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import export_formats, exported_model, format_of
from efficientdet.inference.result_files import chosen_formats
from efficientdet.options.infer import InferOptions
from efficientdet.options.model import CHECKPOINT_ONLY
from efficientdet.prediction.detection_messages import STANDARD_OUTPUT, Messages
from efficientdet.prediction.inputs import Inputs, find_inputs
from program_support.errors import InputError
from program_support.plugins import load_plugin


def infer(options: InferOptions) -> None:
    """Detect objects in images, videos, a camera or a stream, and write what the options name."""
    inputs = find_inputs(options.image_path or [required(None, "image_path")])
    with contextlib.ExitStack() as stack:
        output = sys.stdout
        if options.json_lines == STANDARD_OUTPUT:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        messages = Messages(
            json_lines=options.json_lines,
            mqtt=options.mqtt,
            append=inputs.camera is not None,
            standard_output=output,
        )
        _infer(options, inputs, stack.enter_context(contextlib.closing(messages)))


def _infer(options: InferOptions, inputs: Inputs, messages: Messages) -> None:
    if options.event_seconds is not None and options.save != "events":
        raise InputError("--event_seconds needs --save=events")
    if options.max_offline_seconds is not None and inputs.camera is None:
        raise InputError("--max_offline_seconds needs a camera or stream as --image_path")
    resolved: dict[str, Any] = {"inputs": inputs, "tiling": _tiling(options), "format": chosen_formats(options.format)}
    if options.track:
        _check_tracking(inputs)
    if options.model and (exported := format_of(options.model)) and exported.runtimes:
        if flag := first_given(options, ("model_dir", "saved_model_dir", "debug", *CHECKPOINT_ONLY)):
            raise InputError(f"--model={options.model}: an exported file runs without --{flag}")
        model = exported_model(exported, options.model, options.runtime, "model")
        resolved["output_dir"] = writable_folder(options.output_dir, "output_dir")
        from efficientdet.prediction.annotate import AnnotationConfig, annotate

        annotate(AnnotationConfig(**{**vars(options), **resolved, "model_config": model}), messages)
        return
    overrides = checked_overrides(options)
    if options.model and options.model_dir:
        raise InputError(f"--model={options.model} and --model_dir={options.model_dir}: expected only one of them")
    if not options.model and not options.model_dir and not options.saved_model_dir:
        raise InputError("--model_dir is missing: expected a checkpoint, or --saved_model_dir=FOLDER")
    prefix = existing_checkpoint(options.model or options.model_dir, "model" if options.model else "model_dir")
    if prefix is None and not export_formats()["savedmodel"].recognizes(options.saved_model_dir or ""):
        raise InputError(f"--saved_model_dir={options.saved_model_dir}: holds no saved_model.pb")
    runtime = runtime_settings(options)
    if runtime["runtime"] != "keras" and options.saved_model_dir:
        raise InputError(f"--runtime={options.runtime} runs a checkpoint; --saved_model_dir needs --runtime=keras")
    resolved["output_dir"] = writable_folder(options.output_dir, "output_dir")
    if prefix and options.saved_model_dir:
        writable_folder(options.saved_model_dir, "saved_model_dir")
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.prediction.annotate import AnnotationConfig, annotate

    with report_out_of_memory(batch_size=options.batch_size):
        model = model_config(prefix, overrides, options, **runtime)
        annotate(AnnotationConfig(**{**vars(options), **resolved, "model_config": model}), messages)


def _tiling(options: InferOptions) -> Tiling | None:
    if options.tile is not None:
        overlap = TILE_OVERLAP if options.overlap is None else options.overlap
        return Tiling.parse(options.tile, overlap=overlap, whole=options.tile_whole is not False)
    if first_given(options, ("overlap", "tile_whole")):
        raise InputError("--overlap and --tile_whole need --tile, which is missing")
    return None


def _check_tracking(inputs: Inputs) -> None:
    """Raise InputError if objects cannot be tracked."""
    if not inputs.videos and inputs.camera is None:
        raise InputError("--track needs a video, camera or stream as --image_path, not only images")
    load_plugin("efficientdet.tracking", "requirements")(asked_by="--track")
