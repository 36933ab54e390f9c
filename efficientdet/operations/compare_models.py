"""The operation of compare.py and of `efficientdet.compare`: turn options into a configuration and run it."""

from pathlib import Path

from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.checkpoints.description import read_description
from efficientdet.configuration.flag_paths import class_names_for, existing_file, records_of, writable_folder
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import format_of
from efficientdet.operations.results import ComparisonResult
from efficientdet.options.evaluate import CompareOptions
from efficientdet.prediction.open_model import load_detector
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError


def compare(options: CompareOptions) -> ComparisonResult:
    """Return the differences of detectors from the first one on the same images."""
    if len(options.models) < 2:
        raise InputError(
            f"--models: expected two or more detectors, such as compare.py A B; found {len(options.models)}"
        )
    prefixes = [prefix for path in options.models if (prefix := _checkpoint(path))]
    json_file = existing_file(options.val_json_file, "val_json_file")
    described = next(filter(None, map(read_description, prefixes)), None)
    of_checkpoint = described.class_names if described and not options.common_classes else None
    records = records_of(options.val_file_pattern, "val_file_pattern")
    class_names = class_names_for(records, json_file=json_file, of_checkpoint=of_checkpoint)
    output_dir = writable_folder(options.output_dir, "output_dir")
    page, numbers = Path(output_dir, "compare.html"), Path(output_dir, "compare.json")
    prepare_environment()
    from efficientdet.evaluation.model_comparison import ComparisonConfig, compare_models

    with claimed_outputs(page, numbers):
        resolved = {"output_dir": output_dir, "records": records, "class_names": class_names}
        models, pairs = compare_models(
            ComparisonConfig(**{**vars(options), **resolved, "open_detector": load_detector})
        )
    return ComparisonResult(
        numbers={one.name: one.measures.numbers for one in models},
        differences={pair.name: pair.numbers for pair in pairs},
        class_differences={pair.name: pair.classes for pair in pairs},
        page=page,
        json=numbers,
    )


def _checkpoint(path: str) -> str | None:
    """Return the prefix of a checkpoint; None for a file of detections, an exported file and a SavedModel.

    Raises:
        InputError: there is no such file or checkpoint.
    """
    if not path.endswith(".json") and not format_of(path):
        return existing_checkpoint(path, "models")
    if not Path(path).is_dir():
        existing_file(path, "models")
    return None
