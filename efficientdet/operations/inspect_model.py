"""The operation of inspector.py: summary, export, benchmark and video of a model."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import existing_file, required, writable_file, writable_folder
from efficientdet.configuration.model_config import (
    ModelConfig,
    checked_overrides,
    model_config,
    runtime_settings,
)
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import export_formats
from efficientdet.options.export import RANDOM_WEIGHTS, InspectOptions
from efficientdet.options.model import MOST_DRAWN
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError
from program_support.plugins import load_plugin


def inspect(options: InspectOptions) -> None:
    """Print, export or measure a model, or draw its detections into a video."""
    if options.mode == "infer":
        raise InputError(
            "--mode=infer: python infer.py --image_path=FILE --model_dir=CHECKPOINT --output_dir=FOLDER does that"
        )
    runtime = options.runtime or "keras"
    if options.mode in ("dry", "export") and runtime != "keras":
        raise InputError(f"--runtime={runtime} cannot be combined with --mode={options.mode}, which runs no network")
    {"dry": _dry, "export": _export, "benchmark": _benchmark, "video": _video}[options.mode](_model(options), options)


def _dry(model: ModelConfig, options: InspectOptions) -> None:
    if options.export_ckpt and Path(options.export_ckpt).is_dir():
        raise InputError(
            f"--export_ckpt={options.export_ckpt}: is a folder; expected a prefix inside, such as "
            f"{options.export_ckpt}/ckpt"
        )
    writable_file(options.export_ckpt, "export_ckpt")
    _prepare(needs_tensorflow=bool(model.ckpt_path or options.export_ckpt))
    from efficientdet.checkpoints.checkpoint import BUNDLE_SUFFIXES
    from efficientdet.checkpoints.description import DESCRIPTION_SUFFIX
    from efficientdet.inference.checkpoint_model import dry_run

    suffixes = (*BUNDLE_SUFFIXES, DESCRIPTION_SUFFIX) if options.export_ckpt else ()
    with claimed_outputs(*(f"{options.export_ckpt}{suffix}" for suffix in suffixes)):
        dry_run(model, export_ckpt=options.export_ckpt)


def _export(model: ModelConfig, options: InspectOptions) -> None:
    folder = writable_folder(options.saved_model_dir, "saved_model_dir")
    _prepare(needs_tensorflow=True)
    from efficientdet.inference.checkpoint_model import load_model

    with claimed_outputs(folder):
        restored, _ = load_model(model)
        export_formats()["savedmodel"].write(restored, Path(folder))
    print(f"wrote {folder}")


def _benchmark(model: ModelConfig, options: InspectOptions) -> None:
    image = existing_file(options.input_image, "input_image")
    _check_saved_model(model, options)
    for name in ("dllogger_path", "output_json"):
        writable_file(getattr(options, name), name)
    if options.trace_filename:
        writable_folder(options.trace_filename, "trace_filename")
    _prepare(needs_tensorflow=bool(model.ckpt_path or model.int8_images or image or options.saved_model_dir))
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.operations.benchmark_model import benchmark

    with (
        claimed_outputs(options.output_json, options.dllogger_path),
        report_out_of_memory(batch_size=options.batch_size),
    ):
        benchmark(model, options)


def _video(model: ModelConfig, options: InspectOptions) -> None:
    video = required(options.input_video, "input_video")
    existing_file(video, "input_video")
    output = required(options.output_video, "output_video")
    if not output.lower().endswith(".mp4"):
        raise InputError(f"--output_video={output}: expected a file name that ends in .mp4")
    writable_file(output, "output_video")
    _check_saved_model(model, options)
    from efficientdet.prediction.open_model import open_model, with_thresholds

    _prepare(needs_tensorflow=True)
    model = replace(model, ckpt_path=options.saved_model_dir or model.ckpt_path)
    with claimed_outputs(output):
        load_plugin("efficientdet.video", "annotate")(
            with_thresholds(
                open_model(model, batch_size=options.batch_size),
                min_score=options.min_score_thresh,
                calibrated_scores=options.calibrated_scores,
            ),
            video,
            Path(output),
            batch_size=options.batch_size,
            max_boxes=options.max_boxes_to_draw or MOST_DRAWN,
        )


def _model(options: InspectOptions) -> ModelConfig:
    """Return the checkpoint with --hparams, overridden by the options for hyperparameters, as in the reference."""
    values = {
        "image_size": options.image_size,
        "nms_configs.max_output_size": options.max_boxes_to_draw,
        "nms_configs.score_thresh": options.min_score_thresh,
        "nms_configs.method": options.nms_method,
    }
    overrides = checked_overrides(options, {key: value for key, value in values.items() if value is not None})
    path = None if options.ckpt_path == RANDOM_WEIGHTS else options.ckpt_path
    return model_config(existing_checkpoint(path, "ckpt_path"), overrides, options, **runtime_settings(options))


def _check_saved_model(model: ModelConfig, options: InspectOptions) -> None:
    if options.saved_model_dir and not export_formats()["savedmodel"].recognizes(options.saved_model_dir):
        raise InputError(f"--saved_model_dir={options.saved_model_dir}: holds no saved_model.pb")
    if options.saved_model_dir and model.runtime != "keras":
        raise InputError(f"--runtime={model.runtime} runs a checkpoint; --saved_model_dir needs --runtime=keras")
    if options.saved_model_dir and model.ckpt_path:
        raise InputError("--saved_model_dir and --ckpt_path are both given; expected only one of them")


def _prepare(*, needs_tensorflow: bool) -> None:
    """Prepare the environment.

    Raises:
        InputError: TensorFlow is needed but not installed.
    """
    if importlib.util.find_spec("tensorflow"):
        prepare_environment()
    elif needs_tensorflow:
        raise InputError("checkpoints, SavedModels and image files need TensorFlow, which is not installed")
