"""Options of a quick start: the flags of quickstart.py."""

from typing import Annotated

from dataset.conversion.conversion_options import GroupBy
from dataset.files.file_kinds import FormatName
from efficientdet.options.model import Formats, Labels
from program_support.checked_fields import Help, Share, at_least, between, checked

NO_WEIGHTS = "none"
QUICKSTART_MODEL = "efficientdet-lite0"  # docs/measurements/accuracy.md


@checked
class QuickstartOptions:
    """All options of a quick start."""

    images: Annotated[
        str | None,
        Help("Folder, zip or tar archive of the images; also accepted as the first argument, without the flag's name."),
    ] = None
    annotations: Labels = None
    format: Annotated[FormatName | None, Help("Format of the labels. Default: detected from the content.")] = None
    val_fraction: Annotated[
        float | None,
        between(0, 0.9),
        Help(
            "Fraction of the images used for validation if the data set has no val split. Default: 0.1, as "
            "create_tfrecord.py."
        ),
    ] = None
    group_by: GroupBy = None
    max_bad_fraction: Annotated[
        Share | None,
        Help(
            "Maximum fraction of images, and of boxes, that may be skipped as unusable. Default: 0.01, as "
            "create_tfrecord.py."
        ),
    ] = None
    output_dir: Annotated[str, Help("Output folder.")] = "quickstart"
    model_name: Annotated[
        str | None,
        Help(f"Model, see --model_name of train.py. Default: that of --weights, else {QUICKSTART_MODEL}."),
    ] = None
    minutes: Annotated[
        float,
        at_least(0.1),
        Help(
            "Time budget in minutes, from start to exported files. The same command with more minutes resumes the "
            "training."
        ),
    ] = 30.0
    weights: Annotated[
        str | None,
        Help(
            f"Weights to start from: a detector by its name or path, a backbone by its name, 'imagenet', or "
            f"{NO_WEIGHTS}. Default: the first that is present or can be downloaded of the starter detector, the "
            "published detector and its backbone, else random ones."
        ),
    ] = None
    formats: Formats = ("onnx",)
    hparams: Annotated[str, Help("Hyperparameters that override the chosen ones: comma-separated key=value items.")] = (
        ""
    )


@checked
class QuickstartConfig(QuickstartOptions):
    """Options of a quick start with resolved paths and formats."""

    images: str
    model_name: str
