"""Write a trained detector as files that run by themselves: `python export.py --ckpt=runs/first --output_dir=exported`"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

from absl import flags

from dataset.command_line import run
from dataset.files.image_files import find_images
from efficientdet.configuration.hyperparameters import with_overrides
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.export.formats import FORMATS
from efficientdet.families.registry import hyperparameters_of
from efficientdet.flags.definitions import define_model_flags, finish_flags, model_name_given
from efficientdet.flags.paths import existing_checkpoint, required, writable_folder
from efficientdet.inference.runtimes import require_runtime
from efficientdet.machine.runtime_environment import prepare_environment
from object_detection.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Every flag of export.py."""
    define_model_flags()
    flags.DEFINE_string("ckpt", None, "Checkpoint: a prefix, a folder or the name of published weights.")
    flags.DEFINE_string("output_dir", None, "Folder for the files, artefacts.md and artefacts.json.")
    flags.DEFINE_list("formats", list(FORMATS), f"What to write, of {', '.join(FORMATS)}.")
    flags.DEFINE_multi_string("images", None, "Images to compare the files with the checkpoint on: an image, a folder or a "
                              "glob; may be given several times. Default: noise.")
    flags.DEFINE_enum("weights", "averaged", ["averaged", "raw"], "Which weights, where the checkpoint holds both.")
    flags.DEFINE_integer("runs", 30, "Timed runs of each file on one image.", lower_bound=1)
    finish_flags("export")


def main() -> None:
    """Flags to one call."""
    overrides = parse_overrides(FLAGS.hparams)
    with_overrides(hyperparameters_of(FLAGS.model_name, {}), overrides)
    formats = tuple(dict.fromkeys(FLAGS.formats))
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"--formats={unknown[0]}: wanted some of {', '.join(FORMATS)}")
    if not formats:
        raise InputError(f"--formats is empty; wanted some of {', '.join(FORMATS)}")
    images = find_images(FLAGS.images, flag="images") if FLAGS.images else ()
    prefix = existing_checkpoint(required(FLAGS.ckpt, "ckpt"), "ckpt")
    require_runtime("onnxruntime", asked_by="export.py")
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    prepare_environment()
    from efficientdet.benchmark.artefacts import ExportConfig, export_artefacts
    from efficientdet.inference.opening import ModelConfig

    export_artefacts(
        ModelConfig(ckpt_path=prefix, model_name=FLAGS.model_name, model_name_given=model_name_given(), overrides=overrides,
                    averaged=FLAGS.weights == "averaged", precision="float32", use_xla=False),
        ExportConfig(output_dir=output_dir, formats=formats, images=images, runs=FLAGS.runs))


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
