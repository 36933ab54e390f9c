"""Detect objects in images and draw them: `python infer.py --model_dir=DIR --image_path='*.jpg' --output_dir=OUT`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends without a traceback; `run` handles it later
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from typing import Annotated

from absl import flags

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import (
    checked_overrides,
    define_class_names_flag,
    define_machine_flags,
    define_model_flags,
    define_runtime_flag,
    finish_flags,
    machine_settings,
    model_config,
    runtime_settings,
)
from efficientdet.configuration.flag_paths import existing_file, required, writable_folder
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.export_format import ExportFormat
from efficientdet.exports.formats import TRUSTED_ONLY, export_formats, format_of
from efficientdet.inference.result_files import FORMATS, chosen_formats
from efficientdet.inference.tiles import Tiling
from efficientdet.prediction.inputs import Inputs, find_inputs
from program_support.checked_fields import Count, Share, between
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flag

FLAGS = flags.FLAGS
_FLAGS_OF_CHECKPOINTS = (
    "model_dir",
    "saved_model_dir",
    "class_names",
    "hparams",
    "int8_images",
    "model_name",
    "weights",
    "precision",
    "amp",
    "use_xla",
    "debug",
)


def define_flags() -> None:
    """Define the flags of infer.py: the reference's and additional ones."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    define_class_names_flag()
    flags.DEFINE_multi_string(
        "image_path",
        None,
        "Input: an image, a video, a folder of both or a glob pattern; -: an image on "
        "standard input; a number or /dev/video0: that camera, rtsp://... or http://...: a network stream, each until "
        "Ctrl-C.",
    )
    flags.DEFINE_string("output_dir", "annotated", "Output folder for annotated images, videos and detections.json.")
    flags.DEFINE_string(
        "model_dir", None, "Checkpoint: a prefix or a folder, written by this project, google/automl or NVIDIA."
    )
    flags.DEFINE_string(
        "saved_model_dir",
        None,
        f"SavedModel to run ({TRUSTED_ONLY}). With --model_dir: the folder to which it is exported first.",
    )
    flags.DEFINE_string(
        "model",
        None,
        "File of export.py (.onnx, .xml or .tflite), run without TensorFlow and without a "
        "checkpoint; --runtime=openvino also runs .onnx files. Anything else is a checkpoint, as for --model_dir.",
    )
    define_flag("batch_size", Count, 1, "Batch size.")
    flags.DEFINE_enum(
        "weights",
        "averaged",
        ["averaged", "raw"],
        "Weights to use if the checkpoint has both: the moving average, or the raw weights.",
    )
    flags.DEFINE_bool(
        "apply_exif_orientation",
        True,
        "Rotate images by their EXIF orientation; boxes are in pixels of the "
        "rotated image. --noapply_exif_orientation: detect in the stored pixels, as COCO's annotations do.",
    )
    flags.DEFINE_bool("debug", False, "Run eagerly, without compilation.")
    _define_tile_flags()
    _define_result_flags()
    finish_flags("infer")


def _define_result_flags() -> None:
    define_flag(
        "min_score_thresh",
        Share | None,
        None,
        "Lowest score, from 0 to 1, of the drawn detections. "
        "detections.json has all detections. Default: the thresholds with the best F1 that are stored with the model, "
        "else 0.4.",
    )
    define_flag(
        "max_boxes_to_draw",
        Count,
        100,
        "Maximum number of boxes drawn per image, best first. Default with --tile: no limit.",
    )
    flags.DEFINE_list(
        "format", [], f"Additional output formats of drawn detections, comma-separated: {', '.join(FORMATS)}."
    )
    flags.DEFINE_bool("save_crops", False, "Save a crop of each drawn detection to OUTPUT/crops/CLASS/.")


def _define_tile_flags() -> None:
    flags.DEFINE_string(
        "tile",
        None,
        "Size of tiles in image pixels for sliced inference of large images with small objects: "
        "the side of a square such as 512, or WIDTHxHEIGHT. Default: no tiles.",
    )
    define_flag(
        "overlap",
        Annotated[float, between(0, 0.9)],
        0.2,
        "With --tile: overlap of neighboring tiles as a fraction of the tile size, from 0 to 0.9.",
    )
    flags.DEFINE_bool(
        "tile_whole", True, "With --tile: also detect in the complete image, for objects larger than a tile."
    )


def main() -> None:
    """Detect as the flags state."""
    inputs = find_inputs(FLAGS.image_path or [required(None, "image_path")])
    settings = _settings()
    exported = format_of(FLAGS.model)
    if exported and exported.runtimes:
        _annotate_with_exported_file(exported, inputs, settings)
        return
    overrides = checked_overrides()
    if FLAGS.model and FLAGS.model_dir:
        raise InputError(f"--model={FLAGS.model} and --model_dir={FLAGS.model_dir}: expected only one of them")
    if not FLAGS.model and not FLAGS.model_dir and not FLAGS.saved_model_dir:
        raise InputError("--model_dir is missing: expected a checkpoint, or --saved_model_dir=FOLDER")
    prefix = existing_checkpoint(FLAGS.model or FLAGS.model_dir, "model" if FLAGS.model else "model_dir")
    if prefix is None and not export_formats()["savedmodel"].recognizes(FLAGS.saved_model_dir):
        raise InputError(f"--saved_model_dir={FLAGS.saved_model_dir}: holds no saved_model.pb")
    runtime = runtime_settings()
    if FLAGS.runtime != "keras" and FLAGS.saved_model_dir:
        raise InputError(f"--runtime={FLAGS.runtime} runs a checkpoint; --saved_model_dir needs --runtime=keras")
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    if prefix and FLAGS.saved_model_dir:
        writable_folder(FLAGS.saved_model_dir, "saved_model_dir")
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.prediction.annotate import AnnotationConfig, annotate

    with report_out_of_memory(batch_size=FLAGS.batch_size):
        annotate(
            AnnotationConfig(
                inputs=inputs,
                output_dir=output_dir,
                saved_model_dir=FLAGS.saved_model_dir,
                debug=FLAGS.debug,
                model=model_config(prefix, overrides, **runtime, **machine_settings()),
                **settings,
            )
        )


def _settings() -> dict:
    """Return the fields of `AnnotationConfig` that do not depend on the runtime."""
    if FLAGS.tile is None and (FLAGS["overlap"].present or FLAGS["tile_whole"].present):
        raise InputError("--overlap and --tile_whole need --tile, which is missing")
    tiling = None if FLAGS.tile is None else Tiling.parse(FLAGS.tile, overlap=FLAGS.overlap, whole=FLAGS.tile_whole)
    max_boxes = None if tiling and not FLAGS["max_boxes_to_draw"].present else FLAGS.max_boxes_to_draw
    return {
        "batch_size": FLAGS.batch_size,
        "min_score": FLAGS.min_score_thresh,
        "max_boxes": max_boxes,
        "apply_exif_orientation": FLAGS.apply_exif_orientation,
        "tiling": tiling,
        "formats": chosen_formats(FLAGS.format),
        "save_crops": FLAGS.save_crops,
    }


def _annotate_with_exported_file(exported: ExportFormat, inputs: Inputs, settings: dict) -> None:
    for flag in _FLAGS_OF_CHECKPOINTS:
        if FLAGS[flag].present:
            raise InputError(f"--model={FLAGS.model}: an exported file runs without --{flag}")
    existing_file(FLAGS.model, "model")
    from efficientdet.prediction.annotate import AnnotationConfig, annotate

    runtime = exported.runtime_of(FLAGS.model, FLAGS.runtime, asked_by="--model")

    annotate(
        AnnotationConfig(
            inputs=inputs,
            output_dir=writable_folder(FLAGS.output_dir, "output_dir"),
            model=ModelConfig(ckpt_path=FLAGS.model, runtime=runtime),
            **settings,
        )
    )


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
