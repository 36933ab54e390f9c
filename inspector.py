"""Inspect, export or benchmark a model: `python inspector.py --mode=dry|export|benchmark|video [--ckpt_path=DIR]`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports ends without a traceback; `run` handles it later
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import importlib.util
from dataclasses import replace
from pathlib import Path

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
from efficientdet.configuration.flag_paths import existing_file, required, writable_file, writable_folder
from efficientdet.configuration.inference_runtimes import require_runtime
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import TRUSTED_ONLY, checked_formats, export_formats
from program_support.checked_fields import Count, Share
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flag

FLAGS = flags.FLAGS
_RANDOM_WEIGHTS = "_"


def define_flags() -> None:
    """Define the flags of inspector.py: the reference's and additional ones."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    define_class_names_flag()
    flags.DEFINE_enum(
        "mode",
        "benchmark",
        ["dry", "export", "benchmark", "video", "infer"],
        "Mode. dry: build the model and print a summary; export: write a SavedModel; benchmark: measure the "
        "inference speed; video: draw detections into a video; infer: see infer.py.",
    )
    flags.DEFINE_string(
        "ckpt_path",
        _RANDOM_WEIGHTS,
        "Checkpoint: a prefix or a folder, written by this project, google/automl or NVIDIA; '_': random weights.",
    )
    flags.DEFINE_enum(
        "weights",
        "averaged",
        ["averaged", "raw"],
        "Weights to use if the checkpoint has both: the moving average, or the raw weights.",
    )
    flags.DEFINE_string("export_ckpt", None, "--mode=dry: prefix of a checkpoint to write.")
    flags.DEFINE_string(
        "saved_model_dir",
        None,
        "--mode=export: output folder of the SavedModel. --mode=benchmark or video: "
        f"SavedModel to run ({TRUSTED_ONLY}).",
    )
    flags.DEFINE_list(
        "formats",
        [],
        "--mode=export: formats of export.py to write to --output_dir, comma-separated: "
        f"{', '.join(export_formats())}.",
    )
    flags.DEFINE_string(
        "output_dir", None, "--mode=export: output folder for --formats, artifacts.md and artifacts.json."
    )
    flags.DEFINE_string(
        "onnx_path",
        None,
        "--mode=export: output file for the network as ONNX, from uint8 images to logits and box deltas.",
    )
    define_flag("batch_size", Count, 1, "Batch size.")
    _define_benchmark_and_video_flags()
    _define_detection_flags()
    finish_flags("inspector")


def _define_benchmark_and_video_flags() -> None:
    define_flag("bm_runs", Count, 100, "--mode=benchmark: number of timed runs.")
    define_flag(
        "bm_warm_up_runs", Count, 10, "--mode=benchmark: number of warmup runs, not timed; the first one compiles."
    )
    flags.DEFINE_string("input_image", None, "--mode=benchmark or export: input image. Default: random pixels.")
    flags.DEFINE_string("trace_filename", None, "--mode=benchmark: output folder for the profiler trace of one run.")
    flags.DEFINE_string("dllogger_path", "/tmp/time_log.txt", "--mode=benchmark: DLLogger log file.")
    flags.DEFINE_string("output_json", None, "--mode=benchmark: output file for the measurements as JSON.")
    flags.DEFINE_string("input_video", None, "--mode=video: input video file.")
    flags.DEFINE_string("output_video", None, "--mode=video: output .mp4 file.")


def _define_detection_flags() -> None:
    define_flag(
        "max_boxes_to_draw",
        Count | None,
        None,
        "Maximum number of detections per image. Default: hparam nms_configs.max_output_size.",
    )
    define_flag(
        "min_score_thresh",
        Share | None,
        None,
        "Lowest score of a detection, from 0 to 1. Default: hparam "
        "nms_configs.score_thresh, 0.001; --mode=video: the threshold stored with the model, else 0.4.",
    )
    flags.DEFINE_enum(
        "nms_method",
        None,
        ["hard", "gaussian"],
        "Non-maximum suppression method. Default: hparam nms_configs.method, gaussian.",
    )
    define_flag(
        "image_size",
        Count | None,
        None,
        "google/automl's name for --hparams=image_size=SIDE, the side of a square input in pixels.",
    )


def main() -> None:
    """Run the mode that the flags state."""
    if FLAGS.mode == "infer":
        raise InputError(
            "--mode=infer: python infer.py --image_path=FILE --model_dir=CHECKPOINT --output_dir=FOLDER does that"
        )
    overrides = _overrides()
    if FLAGS.mode in ("dry", "export") and FLAGS.runtime != "keras":
        raise InputError(
            f"--runtime={FLAGS.runtime} cannot be combined with --mode={FLAGS.mode}, which runs no network"
        )
    {"dry": _dry, "export": _export, "benchmark": _benchmark, "video": _video}[FLAGS.mode](_model(overrides))


def _dry(model: ModelConfig) -> None:
    if FLAGS.export_ckpt and Path(FLAGS.export_ckpt).is_dir():
        raise InputError(
            f"--export_ckpt={FLAGS.export_ckpt}: is a folder; expected a prefix inside, such as "
            f"{FLAGS.export_ckpt}/ckpt"
        )
    writable_file(FLAGS.export_ckpt, "export_ckpt")
    _prepare(needs_tensorflow=bool(model.ckpt_path or FLAGS.export_ckpt))
    from efficientdet.exports.inspection import dry_run

    dry_run(model, export_ckpt=FLAGS.export_ckpt)


def _export(model: ModelConfig) -> None:
    image = existing_file(FLAGS.input_image, "input_image")
    if FLAGS.formats:
        _export_formats(model, (image,) if image else ())
        return
    if FLAGS.onnx_path:
        _export_onnx(model)
    if FLAGS.onnx_path and not FLAGS.saved_model_dir:
        return
    folder = writable_folder(FLAGS.saved_model_dir, "saved_model_dir")
    _prepare(needs_tensorflow=True)
    from efficientdet.exports.inspection import export

    export(model, folder, input_image=image)


def _export_formats(model: ModelConfig, images: tuple[str, ...]) -> None:
    formats = checked_formats(FLAGS.formats)
    if in_8_bits := [name for name in formats if export_formats()[name].calibrates]:
        raise InputError(
            f"--formats={in_8_bits[0]}: int8 formats need calibration images; use export.py --int8_images=FILES"
        )
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    _prepare(needs_tensorflow=True)
    from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts

    export_artifacts(
        replace(model, precision="float32", amp=None, use_xla=False),
        ExportConfig(output_dir=output_dir, formats=formats, images=images),
    )


def _export_onnx(model: ModelConfig) -> None:
    if not FLAGS.onnx_path.endswith(".onnx"):
        raise InputError(f"--onnx_path={FLAGS.onnx_path}: expected a file name that ends in .onnx")
    writable_file(FLAGS.onnx_path, "onnx_path")
    require_runtime("onnxruntime", asked_by="--onnx_path")
    _prepare(needs_tensorflow=bool(model.ckpt_path))
    from efficientdet.exports.inspection import export_network

    export_network(model, FLAGS.onnx_path)


def _benchmark(model: ModelConfig) -> None:
    image = existing_file(FLAGS.input_image, "input_image")
    _check_saved_model(model)
    for name in ("dllogger_path", "output_json"):
        writable_file(FLAGS[name].value, name)
    if FLAGS.trace_filename:
        writable_folder(FLAGS.trace_filename, "trace_filename")
    _prepare(needs_tensorflow=bool(model.ckpt_path or model.int8_images or image or FLAGS.saved_model_dir))
    from efficientdet.benchmark.measurements import BenchmarkConfig, benchmark
    from efficientdet.devices.memory import report_out_of_memory

    with report_out_of_memory(batch_size=FLAGS.batch_size):
        benchmark(
            model,
            BenchmarkConfig(
                batch_size=FLAGS.batch_size,
                runs=FLAGS.bm_runs,
                warm_up_runs=FLAGS.bm_warm_up_runs,
                input_image=image,
                saved_model_dir=FLAGS.saved_model_dir,
                trace_folder=FLAGS.trace_filename,
                log_file=FLAGS.dllogger_path,
                output_json=FLAGS.output_json,
            ),
        )


def _video(model: ModelConfig) -> None:
    required(FLAGS.input_video, "input_video")
    video = existing_file(FLAGS.input_video, "input_video")
    if not required(FLAGS.output_video, "output_video").lower().endswith(".mp4"):
        raise InputError(f"--output_video={FLAGS.output_video}: expected a file name that ends in .mp4")
    writable_file(FLAGS.output_video, "output_video")
    _check_saved_model(model)
    from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
    from efficientdet.prediction.open_model import open_model
    from efficientdet.prediction.video import VideoConfig, annotate_video

    _prepare(needs_tensorflow=True)
    model = replace(model, ckpt_path=FLAGS.saved_model_dir or model.ckpt_path)
    opened = open_model(model, batch_size=FLAGS.batch_size, same_size=True)
    given = FLAGS.min_score_thresh
    thresholds = opened.thresholds if given is None else ScoreThresholds(overall=given, source="--min_score_thresh")
    print(f"score threshold: {thresholds}")
    annotate_video(
        VideoConfig(
            source=video,
            output_video=FLAGS.output_video,
            batch_size=FLAGS.batch_size,
            thresholds=thresholds,
            max_boxes=100 if FLAGS.max_boxes_to_draw is None else FLAGS.max_boxes_to_draw,
        ),
        opened.detect,
        opened.class_names,
    )


def _overrides() -> dict:
    """Return --hparams, overridden by the flags for hyperparameters, as in the reference."""
    flag_of = {
        "image_size": "image_size",
        "nms_configs.max_output_size": "max_boxes_to_draw",
        "nms_configs.score_thresh": "min_score_thresh",
        "nms_configs.method": "nms_method",
    }
    given = {key: FLAGS[flag].value for key, flag in flag_of.items() if FLAGS[flag].value is not None}
    return checked_overrides(given)


def _model(overrides: dict) -> ModelConfig:
    path = None if FLAGS.ckpt_path == _RANDOM_WEIGHTS else FLAGS.ckpt_path
    return model_config(existing_checkpoint(path, "ckpt_path"), overrides, **runtime_settings(), **machine_settings())


def _check_saved_model(model: ModelConfig) -> None:
    if FLAGS.saved_model_dir and not export_formats()["savedmodel"].recognizes(FLAGS.saved_model_dir):
        raise InputError(f"--saved_model_dir={FLAGS.saved_model_dir}: holds no saved_model.pb")
    if FLAGS.saved_model_dir and model.runtime != "keras":
        raise InputError(f"--runtime={model.runtime} runs a checkpoint; --saved_model_dir needs --runtime=keras")
    if FLAGS.saved_model_dir and model.ckpt_path:
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


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
