"""Options of a comparison: the flags of compare.py and the arguments of `efficientdet.compare`."""

from typing import Annotated

from efficientdet.options.model import EvaluatedData, EvaluatedRecords
from program_support.checked_fields import Count, Help, checked


@checked
class CompareOptions(EvaluatedData):
    """All options of a comparison."""

    models: Annotated[
        tuple[str, ...],
        Help(
            "Detectors to compare, two or more; also words without a flag. Each is a checkpoint (prefix or folder), a "
            "file of export.py, a SavedModel or a .json file with detections in COCO's results format. The first is "
            "the one that the others are compared with.",
            repeats=True,
        ),
    ] = ()
    output_dir: Annotated[str | None, Help("Output folder for compare.html and compare.json.")] = None
    common_classes: Annotated[
        bool,
        Help(
            "Compare on the classes that the data and all detectors have, such as before and after a class was added. "
            "Default: detectors with other classes than the data's are refused."
        ),
    ] = False
    eval_samples: EvaluatedRecords = 0
    bootstrap: Annotated[Count, Help("Number of bootstrap resamples of the images for the 95 % intervals.")] = 1000
    verify: Annotated[
        str | None,
        Help(
            "Folder of a training, instead of detectors to compare: train again as its provenance.json states, with "
            "--deterministic, and compare the weights bit for bit, or else the AP with its interval."
        ),
    ] = None
