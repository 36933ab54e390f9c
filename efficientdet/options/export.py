"""Options of an export: the flags of export.py and the arguments of `efficientdet.export`."""

from typing import Annotated

from efficientdet.options.model import EvaluatedRecords, Formats, GroundTruth, ThresholdKind, WeightsOptions
from program_support.checked_fields import Count, Help, checked


@checked
class ExportOptions(WeightsOptions):
    """All options of an export."""

    ckpt: Annotated[str | None, Help("Checkpoint to export: a prefix, a folder or the name of published weights.")] = (
        None
    )
    output_dir: Annotated[
        str | None, Help("Output folder for the exported files, artifacts.md and artifacts.json.")
    ] = None
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
    threshold: ThresholdKind = None
    int8_images: Annotated[
        tuple[str, ...],
        Help(
            "Calibration images for the int8 formats; use training images. An image, a folder, or a glob pattern of "
            "images or TFRecords. Default: the records train* in the folder of --val_file_pattern.",
            repeats=True,
        ),
    ] = ()
    int8_samples: Annotated[Count, Help("Maximum number of calibration images, evenly spaced.")] = 100
    push_to: Annotated[
        str | None,
        Help("Repository of the Hugging Face Hub, hf://USER/NAME, that the files and the model card are uploaded to."),
    ] = None
