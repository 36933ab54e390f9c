"""The operation of infer.py: turn options into a configuration and detect in images, videos or a camera."""

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import program
from efficientdet.configuration.flag_paths import existing_file, required, writable_folder
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.model_settings import checked_overrides, first_given, model_config, runtime_settings
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.export_format import ExportFormat
from efficientdet.exports.formats import export_formats, format_of
from efficientdet.inference.result_files import FORMATS, chosen_formats
from efficientdet.inference.tiles import Tiling
from efficientdet.options.infer import InferOptions
from efficientdet.options.model import CHECKPOINT_ONLY, MOST_DRAWN, TILE_OVERLAP
from efficientdet.prediction.inputs import Inputs, find_inputs
from program_support.errors import InputError


def infer(options: InferOptions) -> None:
    """Detect as the options state."""
    inputs = find_inputs(options.image_path or [required(None, "image_path")])
    settings = _settings(options)
    if options.model and (exported := format_of(options.model)) and exported.runtimes:
        _annotate_with_exported_file(exported, options.model, inputs, options, settings)
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
    output_dir = writable_folder(options.output_dir, "output_dir")
    if prefix and options.saved_model_dir:
        writable_folder(options.saved_model_dir, "saved_model_dir")
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.prediction.annotate import AnnotationConfig, annotate

    with report_out_of_memory(batch_size=options.batch_size):
        annotate(
            AnnotationConfig(
                inputs=inputs,
                output_dir=output_dir,
                saved_model_dir=options.saved_model_dir,
                debug=options.debug,
                model=model_config(prefix, overrides, options, **runtime),
                **settings,
            )
        )


def _settings(options: InferOptions) -> dict:
    """Return the fields of `AnnotationConfig` that do not depend on the runtime."""
    if options.tile is None and first_given(options, ("overlap", "tile_whole")):
        raise InputError("--overlap and --tile_whole need --tile, which is missing")
    tiling = options.tile is not None and Tiling.parse(
        options.tile,
        overlap=TILE_OVERLAP if options.overlap is None else options.overlap,
        whole=options.tile_whole is not False,
    )
    return {
        "batch_size": options.batch_size,
        "min_score": options.min_score_thresh,
        "max_boxes": options.max_boxes_to_draw or (None if tiling else MOST_DRAWN),
        "apply_exif_orientation": options.apply_exif_orientation,
        "tiling": tiling or None,
        "formats": chosen_formats(options.format),
        "save_crops": options.save_crops,
    }


def _annotate_with_exported_file(
    exported: ExportFormat, path: str, inputs: Inputs, options: InferOptions, settings: dict
) -> None:
    if flag := first_given(options, ("model_dir", "saved_model_dir", "debug", *CHECKPOINT_ONLY)):
        raise InputError(f"--model={path}: an exported file runs without --{flag}")
    existing_file(path, "model")
    from efficientdet.prediction.annotate import AnnotationConfig, annotate

    runtime = exported.runtime_of(path, options.runtime or "keras", asked_by="--model")
    annotate(
        AnnotationConfig(
            inputs=inputs,
            output_dir=writable_folder(options.output_dir, "output_dir"),
            model=ModelConfig(ckpt_path=path, runtime=runtime),
            **settings,
        )
    )


define_flags, main = program("infer", InferOptions, infer, format=lambda: FORMATS)
