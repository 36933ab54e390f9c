"""Look at a model: `python inspector.py --mode=dry|export|benchmark|video [--ckpt_path=DIR]`."""

import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

import importlib.util
from dataclasses import replace
from pathlib import Path

from absl import flags

from efficientdet.artifacts.saved_model_files import TRUSTED_ONLY, is_saved_model
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.artifact_formats import FORMATS, IN_8_BITS, wanted_formats
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
from efficientdet.configuration.flag_paths import existing_file, required, writable_file, writable_folder
from efficientdet.configuration.inference_runtimes import require_runtime
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from program_support.checked_fields import Count, Share
from program_support.command_line import run
from program_support.errors import InputError
from program_support.field_flags import define_flag

FLAGS = flags.FLAGS
_RANDOM_WEIGHTS = "_"


def define_flags() -> None:
    """Every flag of the reference's inspector.py, and ours."""
    define_model_flags()
    define_machine_flags()
    define_runtime_flag()
    flags.DEFINE_enum("mode", "benchmark", ["dry", "export", "benchmark", "video", "infer"],
                      "dry: build it and say what it is; export: write a SavedModel; benchmark: time inference; video: "
                      "draw detections into a video; infer: see infer.py.")
    flags.DEFINE_string("ckpt_path", _RANDOM_WEIGHTS, "Checkpoint: a prefix or a folder; ours, google/automl's or "
                                                      "NVIDIA's; '_': random weights.")
    flags.DEFINE_enum("weights", "averaged", ["averaged", "raw"], "Which weights, where the checkpoint holds both.")
    flags.DEFINE_string("export_ckpt", None, "dry: prefix of a checkpoint to write.")
    flags.DEFINE_string("saved_model_dir", None, "export: where to write it. benchmark, video: a SavedModel to run "
                                                  f"({TRUSTED_ONLY}).")
    flags.DEFINE_list("formats", [], f"export: files as export.py writes them into --output_dir, of {', '.join(FORMATS)}.")
    flags.DEFINE_string("output_dir", None, "export: folder for --formats, and their table.")
    flags.DEFINE_string("onnx_path", None, "export: file for the network as ONNX; uint8 images in, logits and deltas out.")
    define_flag("batch_size", Count, 1, "Images a step.")
    define_flag("bm_runs", Count, 100, "benchmark: timed runs, after those that are not.")
    define_flag("bm_warm_up_runs", Count, 10, "benchmark: runs before that are not timed; the first compiles.")
    flags.DEFINE_string("input_image", None, "benchmark, export: this image in place of random pixels.")
    flags.DEFINE_string("trace_filename", None, "benchmark: folder for the profiler's trace of one run.")
    flags.DEFINE_string("dllogger_path", "/tmp/time_log.txt", "benchmark: the log.")
    flags.DEFINE_string("output_json", None, "benchmark: file for the figures as JSON.")
    flags.DEFINE_string("input_video", None, "video: the file to read.")
    flags.DEFINE_string("output_video", None, "video: the .mp4 file to write.")
    define_flag("max_boxes_to_draw", Count | None, None, "Detections an image. Default: hparam nms_configs.max_output_size.")
    define_flag("min_score_thresh", Share | None, None, "Lowest score. Default: hparam nms_configs.score_thresh, 0.001, which "
                                                 "gives suppression work even with random weights; video: 0.4.")
    flags.DEFINE_enum("nms_method", None, ["hard", "gaussian"], "Default: hparam nms_configs.method, gaussian.")
    define_flag("image_size", Count | None, None, "google/automl's name: --hparams=image_size=.., a side of a square.")
    finish_flags("inspector")


def main() -> None:
    """Flags to one call."""
    if FLAGS.mode == "infer":
        raise InputError("--mode=infer: python infer.py --image_path=FILE --model_dir=CHECKPOINT --output_dir=FOLDER does that")
    overrides = _overrides()
    if FLAGS.mode in ("dry", "export") and FLAGS.runtime != "keras":
        raise InputError(f"--runtime={FLAGS.runtime} runs a network; --mode={FLAGS.mode} does not")
    {"dry": _dry, "export": _export, "benchmark": _benchmark, "video": _video}[FLAGS.mode](_model(overrides))


def _dry(model: ModelConfig) -> None:
    if FLAGS.export_ckpt and Path(FLAGS.export_ckpt).is_dir():
        raise InputError(f"--export_ckpt={FLAGS.export_ckpt}: is a folder; expected a prefix inside, such as "
                         f"{FLAGS.export_ckpt}/ckpt")
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
    formats = wanted_formats(FLAGS.formats)
    if in_8_bits := [name for name in formats if name in IN_8_BITS]:
        raise InputError(f"--formats={in_8_bits[0]}: needs images for its ranges; export.py --int8_images takes them")
    output_dir = writable_folder(FLAGS.output_dir, "output_dir")
    _prepare(needs_tensorflow=True)
    from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts

    export_artifacts(replace(model, precision="float32", amp=None, use_xla=False),
                     ExportConfig(output_dir=output_dir, formats=formats, images=images))


def _export_onnx(model: ModelConfig) -> None:
    if not FLAGS.onnx_path.endswith(".onnx"):
        raise InputError(f"--onnx_path={FLAGS.onnx_path}: expected a name that ends in .onnx")
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
        benchmark(model, BenchmarkConfig(
            batch_size=FLAGS.batch_size, runs=FLAGS.bm_runs, warm_up_runs=FLAGS.bm_warm_up_runs, input_image=image,
            saved_model_dir=FLAGS.saved_model_dir, trace_folder=FLAGS.trace_filename, log_file=FLAGS.dllogger_path,
            output_json=FLAGS.output_json))


def _video(model: ModelConfig) -> None:
    required(FLAGS.input_video, "input_video")
    video = existing_file(FLAGS.input_video, "input_video")
    if not required(FLAGS.output_video, "output_video").lower().endswith(".mp4"):
        raise InputError(f"--output_video={FLAGS.output_video}: expected a name that ends in .mp4")
    writable_file(FLAGS.output_video, "output_video")
    _check_saved_model(model)
    from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
    from efficientdet.inference.opened_detection import detect_with_model, saved_model_detector
    from efficientdet.inference.video import VideoConfig, annotate_video

    _prepare(needs_tensorflow=True)
    if FLAGS.saved_model_dir:
        opened = saved_model_detector(FLAGS.saved_model_dir, of_one_size=True)
    else:
        opened = detect_with_model(model, batch_size=FLAGS.batch_size)
    given = FLAGS.min_score_thresh
    thresholds = opened.thresholds if given is None else ScoreThresholds(overall=given, source="--min_score_thresh")
    print(f"score threshold: {thresholds}")
    annotate_video(VideoConfig(
        source=video, output_video=FLAGS.output_video, batch_size=FLAGS.batch_size,
        thresholds=thresholds, max_boxes=100 if FLAGS.max_boxes_to_draw is None else FLAGS.max_boxes_to_draw),
        opened.detect, opened.class_names)


def _overrides() -> dict:
    """--hparams, and on top of them the flags for hyperparameters that were given, as in the reference."""
    flag_of = {"image_size": "image_size",
               "nms_configs.max_output_size": "max_boxes_to_draw", "nms_configs.score_thresh": "min_score_thresh",
               "nms_configs.method": "nms_method"}
    given = {key: FLAGS[flag].value for key, flag in flag_of.items() if FLAGS[flag].value is not None}
    return checked_overrides(given)


def _model(overrides: dict) -> ModelConfig:
    path = None if FLAGS.ckpt_path == _RANDOM_WEIGHTS else FLAGS.ckpt_path
    return model_config(existing_checkpoint(path, "ckpt_path"), overrides, **runtime_settings(), **machine_settings())


def _check_saved_model(model: ModelConfig) -> None:
    if FLAGS.saved_model_dir and not is_saved_model(FLAGS.saved_model_dir):
        raise InputError(f"--saved_model_dir={FLAGS.saved_model_dir}: holds no saved_model.pb")
    if FLAGS.saved_model_dir and model.runtime != "keras":
        raise InputError(f"--runtime={model['runtime']} runs a checkpoint's network; --saved_model_dir is TensorFlow's")
    if FLAGS.saved_model_dir and model.ckpt_path:
        raise InputError("--saved_model_dir and --ckpt_path: expected one of the two")


def _prepare(*, needs_tensorflow: bool) -> None:
    """Network and benchmark run under JAX where TensorFlow is absent; files need it."""
    if importlib.util.find_spec("tensorflow"):
        prepare_environment()
    elif needs_tensorflow:
        raise InputError("checkpoints, SavedModels and image files need TensorFlow, which is not installed")


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
