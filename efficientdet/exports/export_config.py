"""Configuration of an export."""

from efficientdet.options.export import ExportOptions
from program_support.checked_fields import checked


@checked
class ExportConfig(ExportOptions):
    """Options of an export with resolved paths and formats. Compared are `images`, else records, else random noise."""

    output_dir: str
    records: tuple[str, ...] = ()  # AP is measured on them; (): it is not measured
    calibration_images: tuple[str, ...] = ()  # image files; (): use `calibration_records`
    calibration_records: tuple[str, ...] = ()
