"""Detect in images, draw what was found: `python infer.py --image_path='DIR/*.jpg' --model_dir=DIR --output_dir=OUT`"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

from typing import Annotated

from absl import flags

from efficientdet.artifacts.saved_model_files import TRUSTED_ONLY, is_saved_model
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import (
    checked_overrides,
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
from efficientdet.inference.inputs import Inputs, find_inputs
from efficientdet.inference.result_files import FORMATS, chosen_formats
from efficientdet.inference.tiles import Tiling
from program_support.checked_fields import Count, Share, between
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flag

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Every flag of the reference's infer.py, and ours."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    flags.DEFINE_multi_string("image_path", None, "An image, a folder of images, a video or a glob; may be given several "
                              "times. -: an image on the standard input. A number: that camera, until Ctrl-C.")
    flags.DEFINE_string("output_dir", "annotated", "Folder for the annotated images, videos and detections.json.")
    flags.DEFINE_string("model_dir", None, "Checkpoint: a prefix or a folder; ours, google/automl's or NVIDIA's.")
    flags.DEFINE_string("saved_model_dir", None, f"A SavedModel to run ({TRUSTED_ONLY}); with --model_dir too, where to "
                                                 "write it first.")
    flags.DEFINE_string("model", None, "A file of export.py (.onnx, .xml, .tflite), run without TensorFlow and "
                                       "checkpoint; an .onnx also with --runtime=openvino.")
    define_flag("batch_size", Count, 1, "Images a step.")
    define_flag("min_score_thresh", Share | None, None, "Lowest score that is drawn, for all classes; detections.json has all "
                       "detections. Default: the thresholds of the best F1 stored with the model, else 0.4.")
    define_flag("max_boxes_to_draw", Count, 100, "Draw the best so many of an image; with --tile all, unless it is given.")
    flags.DEFINE_enum("weights", "averaged", ["averaged", "raw"], "Which weights, where the checkpoint holds both.")
    flags.DEFINE_bool("apply_exif_orientation", True, "Turn images upright as their EXIF says; boxes are in pixels of the "
                      "upright image. --noapply_exif_orientation: detect in the stored pixels, as COCO's annotations are.")
    flags.DEFINE_string("tile", None, "Look at images tile by tile, so that small objects keep their pixels: the side of a "
                        "tile in pixels of the image, such as 512, or WIDTHxHEIGHT.")
    define_flag("overlap", Annotated[float, between(0, 0.9)], 0.2, "With --tile: the share of a tile that the next one "
                "shows again, 0 to 0.9.")
    flags.DEFINE_bool("tile_whole", True, "With --tile: the whole image, too, for objects larger than a tile.")
    flags.DEFINE_list("format", [], f"What is drawn as files, too: {', '.join(FORMATS)}, several with commas between.")
    flags.DEFINE_bool("save_crops", False, "Cut what is drawn out of its image, into OUTPUT/crops/CLASS/.")
    flags.DEFINE_bool("debug", False, "Run step by step, without compilation.")
    finish_flags("infer")


def main() -> None:
    """Flags to one call."""
    inputs = find_inputs(FLAGS.image_path or [required(None, "image_path")])
    settings = _settings()
    if FLAGS.model:
        _annotate_with_artifact(inputs, settings)
        return
    overrides = checked_overrides()
    if not FLAGS.model_dir and not FLAGS.saved_model_dir:
        raise InputError("--model_dir is missing: a checkpoint, or --saved_model_dir=FOLDER")
    prefix = existing_checkpoint(FLAGS.model_dir, "model_dir")
    if prefix is None and not is_saved_model(FLAGS.saved_model_dir):
        raise InputError(f"--saved_model_dir={FLAGS.saved_model_dir}: holds no saved_model.pb")
    runtime = runtime_settings()
    if FLAGS.runtime != "keras" and FLAGS.saved_model_dir:
        raise InputError(f"--runtime={FLAGS.runtime} runs a checkpoint's network; --saved_model_dir is TensorFlow's")
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    if prefix and FLAGS.saved_model_dir:
        writable_folder(FLAGS.saved_model_dir, "saved_model_dir")
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.inference.annotate import AnnotationConfig, annotate

    with report_out_of_memory(batch_size=FLAGS.batch_size):
        annotate(AnnotationConfig(
            inputs=inputs, output_dir=output_dir, saved_model_dir=FLAGS.saved_model_dir, debug=FLAGS.debug,
            model=model_config(prefix, overrides, **runtime, **machine_settings()), **settings))


def _settings() -> dict:
    """What `AnnotationConfig` is reported whatever detects."""
    if FLAGS.tile is None and (FLAGS["overlap"].present or FLAGS["tile_whole"].present):
        raise InputError("--overlap and --tile_whole go with --tile, which is missing")
    tiling = None if FLAGS.tile is None else Tiling.of(FLAGS.tile, overlap=FLAGS.overlap, whole=FLAGS.tile_whole)
    max_boxes = None if tiling and not FLAGS["max_boxes_to_draw"].present else FLAGS.max_boxes_to_draw
    return {"batch_size": FLAGS.batch_size, "min_score": FLAGS.min_score_thresh, "max_boxes": max_boxes,
            "apply_exif_orientation": FLAGS.apply_exif_orientation, "tiling": tiling, "formats": chosen_formats(FLAGS.format),
            "save_crops": FLAGS.save_crops}


def _annotate_with_artifact(inputs: Inputs, settings: dict) -> None:
    for flag in ("model_dir", "saved_model_dir", "hparams", "int8_images"):
        if FLAGS[flag].value:
            raise InputError(f"--model={FLAGS.model}: is a file that runs as it is, without --{flag}")
    existing_file(FLAGS.model, "model")
    from efficientdet.inference.annotate import AnnotationConfig, annotate
    from efficientdet.inference.artifact import artifact_runtime

    runtime = artifact_runtime(FLAGS.model, FLAGS.runtime, asked_by="--model")

    annotate(AnnotationConfig(inputs=inputs, output_dir=writable_folder(FLAGS.output_dir, "output_dir"), artifact=FLAGS.model,
                              model=ModelConfig(runtime=runtime), **settings))


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
