"""Detect in images and draw what was found: `python infer.py --image_path='DIR/*.jpg' --model_dir=DIR --output_dir=OUT`"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

from absl import flags

from dataset.command_line import run
from dataset.files.image_files import find_images
from efficientdet.configuration.hyperparameters import with_overrides
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.export.saved_model_files import TRUSTED_ONLY, is_saved_model
from efficientdet.families.registry import hyperparameters_of
from efficientdet.flags.definitions import (
    define_machine_flags,
    define_model_flags,
    define_runtime_flag,
    finish_flags,
    machine_settings,
    model_name_given,
    runtime_settings,
)
from efficientdet.flags.paths import existing_checkpoint, existing_file, required, writable_folder
from efficientdet.machine.runtime_environment import prepare_environment
from object_detection.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Every flag of the reference's infer.py, and ours."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    flags.DEFINE_multi_string("image_path", None, "An image, a folder or a glob; may be given several times.")
    flags.DEFINE_string("output_dir", None, "Folder for the annotated images and detections.json.")
    flags.DEFINE_string("model_dir", None, "Checkpoint: a prefix or a folder; ours, google/automl's or NVIDIA's.")
    flags.DEFINE_string("saved_model_dir", None, f"A SavedModel to run ({TRUSTED_ONLY}); with --model_dir too, where to "
                                                 "write it first.")
    flags.DEFINE_string("model", None, "A file of export.py (.onnx, .xml, .tflite), run without TensorFlow and "
                                       "checkpoint; an .onnx also with --runtime=openvino.")
    flags.DEFINE_integer("batch_size", 1, "Images a step.")
    flags.DEFINE_float("min_score_thresh", 0.4, "Draw detections from this score on; detections.json has them all.")
    flags.DEFINE_integer("max_boxes_to_draw", 100, "Draw the best so many of an image.")
    flags.DEFINE_enum("weights", "averaged", ["averaged", "raw"], "Which weights, where the checkpoint holds both.")
    flags.DEFINE_bool("apply_exif_orientation", False, "Turn pictures upright first; boxes are in that frame then. By "
                      "default, as in training, they are in the pixels as stored.")
    flags.DEFINE_bool("debug", False, "Run step by step, without compilation.")
    finish_flags("infer")


def main() -> None:
    """Flags to one call."""
    images = find_images(FLAGS.image_path or [required(None, "image_path")])
    if FLAGS.model:
        _annotate_with_artefact(images)
        return
    overrides = parse_overrides(FLAGS.hparams)
    with_overrides(hyperparameters_of(FLAGS.model_name, {}), overrides)
    if not FLAGS.model_dir and not FLAGS.saved_model_dir:
        raise InputError("--model_dir is missing: a checkpoint, or --saved_model_dir=FOLDER")
    prefix = existing_checkpoint(FLAGS.model_dir, "model_dir")
    if prefix is None and not is_saved_model(FLAGS.saved_model_dir):
        raise InputError(f"--saved_model_dir={FLAGS.saved_model_dir}: holds no saved_model.pb")
    required(FLAGS.output_dir, "output_dir")
    runtime = runtime_settings()
    if FLAGS.runtime != "keras" and FLAGS.saved_model_dir:
        raise InputError(f"--runtime={FLAGS.runtime} runs a checkpoint's network; --saved_model_dir is TensorFlow's")
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    if prefix and FLAGS.saved_model_dir:
        writable_folder(FLAGS.saved_model_dir, "saved_model_dir")
    prepare_environment()
    from efficientdet.inference.annotate import AnnotationConfig, annotate
    from efficientdet.machine.memory import telling_out_of_memory

    with telling_out_of_memory(batch_size=FLAGS.batch_size):
        annotate(AnnotationConfig(
            images=images, output_dir=output_dir, ckpt_path=prefix, saved_model_dir=FLAGS.saved_model_dir,
            model_name=FLAGS.model_name, model_name_given=model_name_given(), overrides=overrides,
            averaged=FLAGS.weights == "averaged", batch_size=FLAGS.batch_size, min_score=FLAGS.min_score_thresh,
            max_boxes=FLAGS.max_boxes_to_draw, debug=FLAGS.debug,
            apply_exif_orientation=FLAGS.apply_exif_orientation, **runtime, **machine_settings()))


def _annotate_with_artefact(images: tuple[str, ...]) -> None:
    for flag in ("model_dir", "saved_model_dir", "hparams", "int8_images"):
        if FLAGS[flag].value:
            raise InputError(f"--model={FLAGS.model}: is a file that runs as it is, without --{flag}")
    existing_file(FLAGS.model, "model")
    required(FLAGS.output_dir, "output_dir")
    from efficientdet.inference.annotate import AnnotationConfig, annotate
    from efficientdet.inference.artefact import artefact_runtime

    runtime = artefact_runtime(FLAGS.model, FLAGS.runtime, asked_by="--model")

    annotate(AnnotationConfig(
        images=images, output_dir=writable_folder(FLAGS.output_dir, "output_dir"), artefact=FLAGS.model, runtime=runtime,
        batch_size=FLAGS.batch_size, min_score=FLAGS.min_score_thresh, max_boxes=FLAGS.max_boxes_to_draw,
        apply_exif_orientation=FLAGS.apply_exif_orientation))


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
