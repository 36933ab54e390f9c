"""The operation of quickstart.py: check the options, then convert, train, evaluate and export."""

from dataset.files.image_files import image_source
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.configuration.model_config import checked_overrides
from efficientdet.exports.formats import checked_formats
from efficientdet.families.published_files import published_files
from efficientdet.families.registry import hyperparameters_of, model_names
from efficientdet.options.model import ModelOptions
from efficientdet.options.quickstart import NO_WEIGHTS, QUICKSTART_MODEL, QuickstartConfig, QuickstartOptions
from efficientdet.options.train import PRETRAINED_BACKBONE
from efficientdet.quickstart.steps import quickstart
from program_support.errors import InputError


def run_quickstart(options: QuickstartOptions) -> None:
    """Check the options, then convert, train, evaluate and export."""
    if not options.images:
        raise InputError(
            "expected a folder or zip archive of labeled images: python quickstart.py photos.zip "
            "--output_dir=runs/photos; --help lists all flags"
        )
    images = image_source(options.images)
    weights, model_name = _weights_and_their_model(options.weights)
    model_name = options.model_name or model_name or QUICKSTART_MODEL
    if hyperparameters_of(model_name, {}).family.quickstart is None:
        chosen_for = ", ".join(name for name in model_names() if hyperparameters_of(name, {}).family.quickstart)
        raise InputError(
            f"--model_name={model_name}: expected one of {chosen_for}; for others see docs/reference/detectors.md"
        )
    checked_overrides(ModelOptions(model_name=model_name, hparams=options.hparams))
    formats = checked_formats(options.formats)  # refused before the training, not after it
    output_dir = writable_folder(options.output_dir, "output_dir")
    resolved = {
        "images": images,
        "output_dir": output_dir,
        "formats": formats,
        "weights": weights,
        "model_name": model_name,
    }
    quickstart(QuickstartConfig(**{**vars(options), **resolved}))


def _weights_and_their_model(weights: str | None) -> tuple[str | None, str | None]:
    """Return --weights with the prefix of a checkpoint, and the model that published or own weights are of."""
    if not weights or weights in (NO_WEIGHTS, PRETRAINED_BACKBONE):
        return weights, None
    prefix = existing_checkpoint(weights, "weights")
    assert prefix is not None  # a path is given
    if weights in published_files():  # known by its name, which says whether it is a backbone
        return weights, weights if weights in model_names() else None
    description = read_description(prefix)
    return prefix, description.model_name if description else None
