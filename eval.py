"""Evaluate a checkpoint on TFRecords: `python eval.py --ckpt=DIR --val_file_pattern='DIR/val-*' [--val_json_file=...]`"""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

from absl import flags

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
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
    writable_file,
    writable_folder,
)
from efficientdet.devices.runtime_environment import prepare_environment
from program_support.checked_fields import Count, CountOrZero
from program_support.command_line import run
from program_support.field_flags import define_flag

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Every flag of the reference's eval.py, and ours."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    flags.DEFINE_string("val_file_pattern", None, "Glob of the TFRecords to evaluate on.")
    flags.DEFINE_string("val_json_file", None, "COCO json to evaluate against; without one, the boxes in the records.")
    flags.DEFINE_string("ckpt_path", None, "Checkpoint: a prefix or a folder; ours, google/automl's or NVIDIA's.")
    define_flag("batch_size", Count, 8, "Images a step.")
    define_flag("eval_samples", CountOrZero, 0, "Evaluate the first so many records; 0: all.")
    flags.DEFINE_enum("weights", "averaged", ["averaged", "raw"], "Which weights, where the checkpoint holds both.")
    flags.DEFINE_bool("enable_map_parallelization", True, "Read and decode images in parallel.")
    flags.DEFINE_string("testdev_dir", None, "Folder for the detections as a COCO submission.")
    flags.DEFINE_string("output_json", None, "File for the numbers as JSON.")
    flags.DEFINE_string("report", None, "Folder for report.html and report.json: curves, confusion, kinds of errors, the worst "
                        "images.")
    flags.DEFINE_bool("store_thresholds", False, "Store each class's score threshold of the best F1 with the checkpoint, where "
                      "infer.py, serve.py and export.py find it. A training's own evaluations do so by themselves.")
    finish_flags("eval")


def main() -> None:
    """Flags to one call."""
    overrides = checked_overrides()
    json_file = existing_file(FLAGS.val_json_file, "val_json_file")
    records = records_of(FLAGS.val_file_pattern, "val_file_pattern")
    class_names = class_names_for(records, json_file=json_file)
    prefix = existing_checkpoint(required(FLAGS.ckpt_path, "ckpt_path"), "ckpt_path")
    runtime = runtime_settings()
    output_json = writable_file(FLAGS.output_json, "output_json")
    testdev_dir = writable_folder(FLAGS.testdev_dir, "testdev_dir") if FLAGS.testdev_dir else None
    report = writable_folder(FLAGS.report, "report") if FLAGS.report is not None else None
    prepare_environment()
    from efficientdet.devices.memory import telling_out_of_memory
    from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint

    with telling_out_of_memory(batch_size=FLAGS.batch_size):
        evaluate_checkpoint(EvaluationConfig(
            model=model_config(prefix, overrides, class_names=class_names, **runtime, **machine_settings()),
            records=records, json_file=json_file, batch_size=FLAGS.batch_size, samples=FLAGS.eval_samples,
            num_threads=0 if FLAGS.enable_map_parallelization else 1, testdev_dir=testdev_dir,
            output_json=output_json, report=report, store_thresholds=FLAGS.store_thresholds))


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
