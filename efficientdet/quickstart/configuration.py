"""Configuration of a quick start."""

from efficientdet.options.quickstart import QuickstartOptions
from program_support.checked_fields import checked


@checked
class QuickstartConfig(QuickstartOptions):
    """Options of a quick start with resolved paths and formats."""

    images: str
    model_name: str
