"""Configuration of an export."""

from collections.abc import Sequence
from typing import Annotated

from program_support.checked_fields import Count, CountOrZero, checked


@checked
class ExportConfig:
    """Configuration of an export and its comparison with the checkpoint."""

    output_dir: str
    formats: Sequence[str]
    images: Sequence[str] = ()  # image files for the comparison; (): those of `records`, else random noise
    runs: Count = 30
    records: Sequence[str] = ()  # AP is measured on them; (): it is not measured
    json_file: str | None = None  # COCO ground truth; None: boxes in the records
    samples: Annotated[CountOrZero, "eval_samples"] = 0  # number of records; 0: all
    calibration_images: Sequence[str] = ()  # image files; (): use `calibration_records`
    calibration_records: Sequence[str] = ()
    calibration_samples: Annotated[Count, "int8_samples"] = 100  # maximum number of calibration images
    list_layers: bool = False  # list layers by quantization error, even if AP is unaffected
