"""The operation of next_images.py: turn options into a configuration and choose images."""

from dataclasses import replace
from pathlib import Path

from dataset.files.image_files import find_images
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import records_of, required, writable_folder
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import format_of
from efficientdet.inference.result_files import chosen_formats
from efficientdet.options.next_images import NextImagesOptions
from efficientdet.quickstart.output_folder import latest_round, present_round, round_folder
from program_support.errors import InputError
from program_support.file_patterns import paths_beginning_with
from program_support.plugins import load_plugin


def choose_images(options: NextImagesOptions) -> None:
    """Choose images to label next, and write copies of them with proposals."""
    folder = required(options.model, "model")
    if exported := format_of(folder):
        raise InputError(
            f"--model={folder}: is {exported.title}, which has no features; expected a checkpoint or an output folder "
            "of quickstart.py"
        )
    top = Path(folder)  # of a quick start, whose later rounds are below it
    prefix = existing_checkpoint(
        str(round_folder(top, number)) if (number := present_round(top)) > 1 else folder, "model"
    )
    paths = find_images(options.images or [required(None, "images")], flag="images")
    records = _labeled(options, str(round_folder(top, latest_round(top))))
    resolved = replace(
        options,
        format=tuple(chosen_formats(options.format)),
        output_dir=writable_folder(options.output_dir, "output_dir"),
    )
    prepare_environment()
    choose = load_plugin("efficientdet.image_choices", "next_images")
    choose(resolved, paths=paths, records=records, checkpoint=prefix)


def _labeled(options: NextImagesOptions, folder: str) -> tuple[str, ...]:
    """Return the shards of the labeled images; () for a checkpoint alone."""
    if options.labeled:
        return records_of(options.labeled, "labeled")
    shards = paths_beginning_with(folder, "/records/*-of-*.tfrecord")
    if not shards:
        print(f"{Path(folder)}: has no records; the images are compared with each other only")
    return tuple(shards)
