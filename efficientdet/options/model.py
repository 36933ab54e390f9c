"""Options that several programs share."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

from dataset.class_names import CLASS_FILE_SUFFIXES
from efficientdet.families.registry import DEFAULT_MODEL
from program_support.checked_fields import CountOrZero, Help, checked, one_of
from program_support.plugins import plugin_names

TRUSTED_ONLY = "use trusted sources only: its graph may read and write files"  # said where SavedModels are run
RUNTIMES = ("keras", "onnxruntime", "openvino")
MOST_DRAWN = 100  # boxes drawn per image by default

Labels = Annotated[
    str | None,
    Help(
        "File or folder of the labels, in any format that create_tfrecord.py reads. Default: the folder of the images."
    ),
]
GroundTruth = Annotated[str | None, Help("COCO JSON file with the ground truth. Default: the boxes in the records.")]
EvaluatedRecords = Annotated[CountOrZero, Help("Number of records to evaluate, from the first; 0: all.")]
Formats = Annotated[tuple[str, ...], Help("Formats to export, comma-separated: ")]
CalibratedScores = Annotated[
    bool,
    Help(
        "Replace each score by the probability that the detection is correct, with the map that eval.py "
        "--calibrate_scores has stored with the model. The same detections reach the stored thresholds."
    ),
]


def export_formats() -> tuple[str, ...]:
    """Return the names of the formats of exported files, without importing any."""
    return (*plugin_names("efficientdet.export_formats"), "savedmodel")


@checked
class ModelOptions:
    """Model and hyperparameters."""

    model_name: Annotated[
        str | None,
        Help(
            "Model: efficientdet-d0 to -d7 and -d7x, efficientdet-lite0 to -lite4 and -lite3x, ssd300-resnet34, "
            "retinanet-RESNET and mask-rcnn-RESNET, or that of an installed package (docs/reference/detectors.md).",
            DEFAULT_MODEL,
        ),
    ] = None
    hparams: Annotated[
        str | Mapping[str, Any], Help("Hyperparameters: key=value items, comma-separated, or a .yaml file.")
    ] = ""


@checked
class CheckpointOptions(ModelOptions):
    """Model of a checkpoint, and names of its classes."""

    class_names: Annotated[
        str | None,
        Help(
            "Classes of a checkpoint that does not name them (google/automl, NVIDIA, PyTorch): names in the order of "
            f"their ids, comma-separated, or a file of them ({', '.join(CLASS_FILE_SUFFIXES)}). Default: classes.json, "
            "a label map or another such file beside the checkpoint, else those of COCO, or numbers."
        ),
    ] = None


@checked
class WeightsOptions(CheckpointOptions):
    """Model of a checkpoint, and which of its weights are used."""

    weights: Annotated[
        str | None,
        one_of("averaged", "raw"),
        Help("Weights to use if the checkpoint has both: the moving average, or the raw weights.", "averaged"),
    ] = None


@checked
class EvaluatedData:
    """Records to evaluate on."""

    val_file_pattern: Annotated[str | None, Help("Glob pattern of the TFRecords to evaluate on.")] = None
    val_json_file: GroundTruth = None


@checked
class MachineOptions:
    """Precision and compilation."""

    amp: Annotated[
        bool | None,
        Help("Automatic mixed precision: mixed_float16 instead of float32. Default: on with an accelerator."),
    ] = None
    precision: Annotated[
        str | None,
        one_of("float32", "mixed_float16", "mixed_bfloat16"),
        Help("Precision policy of Keras. Overrides --amp."),
    ] = None
    use_xla: Annotated[bool | None, Help("Compile with XLA. Default: on with an accelerator.")] = None


@checked
class RuntimeOptions:
    """Runtime of a program that only detects."""

    runtime: Annotated[
        str | None,
        one_of(*RUNTIMES),
        Help(
            "Runtime of the network: the Keras backend, or ONNX Runtime or OpenVINO on a CPU, for which the network is "
            "exported with folded batch norm.",
            "keras",
        ),
    ] = None
    int8_images: Annotated[
        tuple[str, ...],
        Help(
            "With --runtime=openvino: run convolutions in int8, calibrated on these images; use training images. An "
            "image, a folder or a glob pattern.",
            repeats=True,
        ),
    ] = ()


# Options that have no effect on an exported file
CHECKPOINT_ONLY = tuple(
    field.name
    for options in (WeightsOptions, MachineOptions, RuntimeOptions)
    for field in fields(options)
    if field.name != "runtime"
)
