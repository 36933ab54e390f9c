"""Options of a data check: the flags of doctor.py and the arguments of `efficientdet.examine`."""

from typing import Annotated

from efficientdet.options.model import ModelOptions
from program_support.checked_fields import Count, Help, checked


@checked
class ExamineOptions(ModelOptions):
    """All options of a data check."""

    records: Annotated[str | None, Help("Glob pattern of the training TFRecords.")] = None
    val_records: Annotated[str | None, Help("Glob pattern of the validation TFRecords.")] = None
    images_read: Annotated[
        Count,
        Help("Number of images to decode per split, evenly spaced. The boxes of all images are counted."),
    ] = 2000
    image_size: Annotated[
        str | None,
        Help("Input size of the network in pixels: the side of a square, or WIDTHxHEIGHT. Default: the model's."),
    ] = None
    pretrained_ckpt: Annotated[
        str | None,
        Help(
            "Checkpoint or published weights that the training will start from: anchors and normalization are those of "
            "its weights, and no others are suggested."
        ),
    ] = None
    output_dir: Annotated[
        str | None, Help("Output folder for doctor.html and doctor.json. Default: only the findings are printed.")
    ] = None
