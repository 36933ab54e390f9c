"""Options of an export: the flags of export.py and the arguments of `efficientdet.export`."""

from typing import Annotated

from efficientdet.options.model import (
    TRUSTED_ONLY,
    CalibratedScores,
    EvaluatedRecords,
    Formats,
    GroundTruth,
    MachineOptions,
    RuntimeOptions,
    WeightsOptions,
)
from program_support.checked_fields import Count, Help, Share, checked, one_of


@checked
class ExportOptions(WeightsOptions):
    """All options of an export."""

    ckpt: Annotated[str | None, Help("Checkpoint to export: a prefix, a folder or the name of published weights.")] = (
        None
    )
    output_dir: Annotated[str | None, Help("Output folder for the exported files, README.md and artifacts.json.")] = (
        None
    )
    formats: Formats = ("onnx", "onnx-raw", "savedmodel")
    images: Annotated[
        tuple[str, ...],
        Help(
            "Images on which each file is compared with the checkpoint: an image, a folder or a glob pattern; of more "
            "than 64 an evenly spaced part. Default: 16 of the validation records, else random noise.",
            repeats=True,
        ),
    ] = ()
    runs: Annotated[Count, Help("Number of timed runs of each file on one image.")] = 30
    val_file_pattern: Annotated[
        str | None, Help("Glob pattern of TFRecords on which the AP of the checkpoint and of each file is measured.")
    ] = None
    val_json_file: GroundTruth = None
    eval_samples: EvaluatedRecords = 0
    int8_images: Annotated[
        tuple[str, ...],
        Help(
            "Calibration images for the int8 formats; use training images. An image, a folder, or a glob pattern of "
            "images or TFRecords. Default: the records train* in the folder of --val_file_pattern.",
            repeats=True,
        ),
    ] = ()
    int8_samples: Annotated[Count, Help("Maximum number of calibration images, evenly spaced.")] = 100


RANDOM_WEIGHTS = "_"


@checked
class InspectOptions(WeightsOptions, MachineOptions, RuntimeOptions):
    """All options of an inspection."""

    mode: Annotated[
        str,
        one_of("dry", "export", "benchmark", "video", "infer"),
        Help(
            "Mode. dry: build the model and print a summary; export: write a SavedModel; benchmark: measure the "
            "inference speed; video: draw detections into a video; infer: see infer.py."
        ),
    ] = "benchmark"
    ckpt_path: Annotated[
        str,
        Help(
            "Checkpoint: a prefix or a folder, written by this project, google/automl or NVIDIA; '_': random weights."
        ),
    ] = RANDOM_WEIGHTS
    export_ckpt: Annotated[str | None, Help("--mode=dry: prefix of a checkpoint to write.")] = None
    saved_model_dir: Annotated[
        str | None,
        Help(
            "--mode=export: output folder of the SavedModel. --mode=benchmark or video: SavedModel to run "
            f"({TRUSTED_ONLY})."
        ),
    ] = None
    batch_size: Annotated[Count, Help("Batch size.")] = 1
    bm_runs: Annotated[Count, Help("--mode=benchmark: number of timed runs.")] = 100
    bm_warm_up_runs: Annotated[
        Count, Help("--mode=benchmark: number of warmup runs, not timed; the first one compiles.")
    ] = 10
    input_image: Annotated[str | None, Help("--mode=benchmark: input image. Default: random pixels.")] = None
    trace_filename: Annotated[
        str | None, Help("--mode=benchmark: output folder for the profiler trace of one run.")
    ] = None
    dllogger_path: Annotated[str, Help("--mode=benchmark: DLLogger log file.")] = "/tmp/time_log.txt"
    output_json: Annotated[str | None, Help("--mode=benchmark: output file for the measurements as JSON.")] = None
    input_video: Annotated[str | None, Help("--mode=video: input video file.")] = None
    output_video: Annotated[str | None, Help("--mode=video: output .mp4 file.")] = None
    max_boxes_to_draw: Annotated[
        Count | None,
        Help("Maximum number of detections per image. Default: hparam nms_configs.max_output_size."),
    ] = None
    min_score_thresh: Annotated[
        Share | None,
        Help(
            "Lowest score of a detection, from 0 to 1. Default: hparam nms_configs.score_thresh, 0.001; --mode=video: "
            "the threshold stored with the model, else 0.4."
        ),
    ] = None
    calibrated_scores: CalibratedScores = False
    nms_method: Annotated[
        str | None,
        one_of("hard", "gaussian"),
        Help("Non-maximum suppression method. Default: hparam nms_configs.method, gaussian."),
    ] = None
    image_size: Annotated[
        Count | None,
        Help("google/automl's name for --hparams=image_size=SIDE, the side of a square input in pixels."),
    ] = None
