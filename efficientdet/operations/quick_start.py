"""The operation of quickstart.py: check the options, then convert, train, evaluate and export."""

from dataset.files.image_files import image_source
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import program
from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.configuration.model_settings import checked_overrides
from efficientdet.exports.formats import checked_formats, export_formats
from efficientdet.families.registry import hyperparameters_of, model_names
from efficientdet.options.model import ModelOptions
from efficientdet.options.quickstart import NO_WEIGHTS, QuickstartOptions
from efficientdet.quickstart.configuration import QuickstartConfig
from efficientdet.quickstart.steps import quickstart
from program_support.errors import InputError


def run_quickstart(options: QuickstartOptions) -> None:
    """Run the quick start as the options state."""
    if not options.images:
        raise InputError(
            "expected a folder or zip archive of labeled images: python quickstart.py photos.zip "
            "--output_dir=runs/photos; --help lists all flags"
        )
    images = image_source(options.images)
    if hyperparameters_of(options.model_name, {}).family.quickstart is None:
        chosen_for = ", ".join(name for name in model_names() if hyperparameters_of(name, {}).family.quickstart)
        raise InputError(
            f"--model_name={options.model_name}: expected one of {chosen_for}; for others see "
            "docs/reference/detectors.md"
        )
    checked_overrides(ModelOptions(model_name=options.model_name, hparams=options.hparams))
    formats = checked_formats(options.formats)  # refused before the training, not after it
    weights = options.weights if options.weights == NO_WEIGHTS else existing_checkpoint(options.weights, "weights")
    output_dir = writable_folder(options.output_dir, "output_dir")
    resolved = {"images": images, "output_dir": output_dir, "formats": formats, "weights": weights}
    quickstart(QuickstartConfig(**{**vars(options), **resolved}))


define_flags, main = program("quickstart", QuickstartOptions, run_quickstart, formats=export_formats)
