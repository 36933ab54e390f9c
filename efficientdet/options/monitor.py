"""Options of the estimate of AP on unlabeled images: the flags of monitor.py."""

from typing import Annotated

from program_support.checked_fields import Help, InsideZeroToOne, checked


@checked
class MonitorOptions:
    """All options of the estimate of AP on unlabeled images."""

    model: Annotated[
        str | None, Help("Detector: an output folder of quickstart.py, a checkpoint or a file of export.py.")
    ] = None
    images: Annotated[
        tuple[str, ...], Help("Unlabeled images: an image, a folder or a glob pattern.", repeats=True)
    ] = ()
    reference: Annotated[
        str | None,
        Help(
            "Glob pattern of labeled TFRecords that the detector was not trained on, to make its reference from. "
            "Default: the reference beside the model, else the validation records of the output folder of "
            "quickstart.py."
        ),
    ] = None
    false_alarms: Annotated[
        InsideZeroToOne, Help("Rate of false alarms: share of the calls that report drift where there is none.")
    ] = 0.01
    output_dir: Annotated[str, Help("Output folder for monitor.html and monitor.json.")] = "monitor"
