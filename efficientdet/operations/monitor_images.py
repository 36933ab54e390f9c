"""The operation of monitor.py and of `efficientdet.monitor`: turn options into paths and estimate AP."""

from dataclasses import replace
from pathlib import Path

from dataset.files.image_files import find_images
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.configuration.flag_paths import existing_file, records_of, required, writable_folder
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import format_of
from efficientdet.operations.results import MonitorResult
from efficientdet.options.monitor import MonitorOptions
from efficientdet.prediction.open_model import load_detector
from efficientdet.quickstart.output_folder import exported_model, latest_round, round_folder
from program_support.file_patterns import paths_beginning_with
from program_support.plugins import load_plugin


def monitor(options: MonitorOptions) -> MonitorResult:
    """Estimate AP on unlabeled images and compare them with the reference, which is made first if records are given."""
    folder = Path(required(options.model, "model"))
    exported = exported_model(folder)
    path = str(exported) if exported.is_file() else str(folder)
    if not format_of(path):
        path = existing_checkpoint(path, "model") or path
    elif not Path(path).is_dir():
        existing_file(path, "model")
    images = find_images(options.images or [required(None, "images")], flag="images")
    if options.reference:
        records = records_of(options.reference, "reference")
    else:
        records = tuple(
            paths_beginning_with(str(round_folder(folder, latest_round(folder))), "/records/val-*.tfrecord")
        )
    options = replace(options, output_dir=writable_folder(options.output_dir, "output_dir"))
    prepare_environment()
    run = load_plugin("efficientdet.monitors", "monitor")
    return run(options, detector=load_detector(path), model=path, images=images, records=records)
