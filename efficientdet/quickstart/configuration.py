"""Configuration of a quick start."""

from typing import Annotated

from dataset.conversion.format_recognition import FORMATS
from program_support.checked_fields import Share, at_least, between, checked, one_of

NO_WEIGHTS = "none"


@checked
class QuickstartConfig:
    """Configuration of a quick start.

    weights: a name or path to start from, or `none`; None: the pretrained weights of the model if available. hparams:
    the user's hyperparameters.
    """

    images: str
    annotations: str | None
    output_dir: str
    model_name: str
    minutes: Annotated[float, at_least(0.1)] = 30.0
    weights: str | None
    formats: tuple[str, ...]
    hparams: str
    format: Annotated[str, one_of(*FORMATS)] | None = None  # format of the labels; None: recognized by content
    val_fraction: Annotated[float, between(0, 0.9)] | None = None  # None: the default of create_tfrecord.py
    max_bad_fraction: Share | None = None  # the same
