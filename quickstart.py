"""Train and export a detector from a folder or archive of labeled images: `python quickstart.py FOLDER_OR_ARCHIVE`.

Converts and examines the images, chooses settings for the data and this machine, trains, evaluates and exports. Logs
each choice with its reason and each command. The same command resumes after an interruption; with more --minutes it
trains longer.
"""

import sys

from absl import flags

from dataset.files.image_files import image_source
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import checked_overrides
from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.exports.formats import checked_formats, export_formats
from efficientdet.families.registry import DEFAULT_MODEL, hyperparameters_of, model_names
from efficientdet.quickstart.configuration import NO_WEIGHTS, QuickstartConfig
from efficientdet.quickstart.steps import quickstart
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flags_of

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Define the flags of quickstart.py."""
    define_flags_of(
        QuickstartConfig,
        {
            "images": "Folder, zip or tar archive of the images; also accepted as the first argument, without the "
            "flag's name.",
            "annotations": "File or folder of the labels, in any format that create_tfrecord.py reads. Default: the "
            "folder of the images.",
            "format": "Format of the labels. Default: detected from the content.",
            "val_fraction": "Fraction of the images used for validation if the data set has no val split. Default: "
            "0.1, as create_tfrecord.py.",
            "max_bad_fraction": "Maximum fraction of images, and of boxes, that may be skipped as unusable. Default: "
            "0.01, as create_tfrecord.py.",
            "minutes": "Time budget in minutes, from start to exported files. The same command with more minutes "
            "resumes the training.",
            "weights": f"Pretrained detector to start from: a name, a path, or {NO_WEIGHTS}. Default: the model's "
            "published weights, if they can be downloaded.",
        },
    )
    flags.DEFINE_string("output_dir", "quickstart", "Output folder.")
    flags.DEFINE_string("model_name", DEFAULT_MODEL, f"Model; one of {', '.join(model_names())}.")
    flags.DEFINE_list("formats", ["onnx"], f"Formats to export, comma-separated: {', '.join(export_formats())}.")
    flags.DEFINE_string(
        "hparams", "", "Hyperparameters that override the chosen ones: comma-separated key=value items."
    )


def main() -> None:
    """Run the quick start as the flags state."""
    if not FLAGS.images:
        raise InputError(
            "expected a folder or zip archive of labeled images: python quickstart.py photos.zip "
            "--output_dir=runs/photos; --help lists all flags"
        )
    images = image_source(FLAGS.images)
    if hyperparameters_of(FLAGS.model_name, {}).family.quickstart is None:
        chosen_for = ", ".join(name for name in model_names() if hyperparameters_of(name, {}).family.quickstart)
        raise InputError(
            f"--model_name={FLAGS.model_name}: expected one of {chosen_for}; for others see docs/reference/detectors.md"
        )
    checked_overrides()
    formats = checked_formats(FLAGS.formats)  # refused before the training, not after it
    weights = FLAGS.weights if FLAGS.weights == NO_WEIGHTS else existing_checkpoint(FLAGS.weights, "weights")
    quickstart(
        QuickstartConfig(
            images=images,
            annotations=FLAGS.annotations,
            output_dir=writable_folder(FLAGS.output_dir, "output_dir"),
            format=FLAGS.format,
            val_fraction=FLAGS.val_fraction,
            max_bad_fraction=FLAGS.max_bad_fraction,
            model_name=FLAGS.model_name,
            minutes=FLAGS.minutes,
            weights=weights,
            formats=formats,
            hparams=FLAGS.hparams,
        )
    )


if __name__ == "__main__":
    define_flags()
    folder, rest = sys.argv[1:2], sys.argv[2:]
    run(main, [sys.argv[0], *(f"--images={word}" if not word.startswith("-") else word for word in folder), *rest])
