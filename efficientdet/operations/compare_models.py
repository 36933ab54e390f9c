"""The operation of compare.py and of `efficientdet.compare`: turn options into a configuration and run it."""

import sys
from pathlib import Path

from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.configuration.flag_definitions import program
from efficientdet.configuration.flag_paths import class_names_for, existing_file, records_of, writable_folder
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import format_of
from efficientdet.operations.results import ComparisonResult
from efficientdet.options.compare import CompareOptions
from efficientdet.prediction.open_model import load_detector
from program_support.errors import InputError


def compare(options: CompareOptions) -> ComparisonResult:
    """Compare the detectors as the options state."""
    if len(options.models) < 2:
        raise InputError(
            f"--models: expected two or more detectors, such as compare.py A B; found {len(options.models)}"
        )
    for path in options.models:
        if path.endswith(".json") or format_of(path):
            existing = Path(path).is_dir() or existing_file(path, "models")
        else:
            existing = existing_checkpoint(path, "models")
        assert existing  # both raise an InputError else
    json_file = existing_file(options.val_json_file, "val_json_file")
    records = records_of(options.val_file_pattern, "val_file_pattern")
    class_names = class_names_for(records, json_file=json_file)
    output_dir = writable_folder(options.output_dir, "output_dir")
    prepare_environment()
    from efficientdet.evaluation.model_comparison import ComparisonConfig, compare_models

    resolved = {"output_dir": output_dir, "records": records, "class_names": class_names}
    compared = compare_models(ComparisonConfig(**{**vars(options), **resolved, "open_detector": load_detector}))
    return ComparisonResult(
        numbers={one.name: one.measures.numbers for one in compared.models},
        differences={pair.name: pair.numbers for pair in compared.pairs},
        class_differences={pair.name: pair.classes for pair in compared.pairs},
        page=Path(output_dir, "compare.html"),
        json=Path(output_dir, "compare.json"),
    )


def compare_or_verify(options: CompareOptions) -> ComparisonResult | None:
    """Run compare.py: with --verify repeat a training, and end with code 1 if it has another result."""
    if options.verify is None:
        return compare(options)
    if options.models:
        raise InputError(f"--verify={options.verify}: expected without detectors to compare")
    from efficientdet.operations.verify_model import verify

    if not verify(options.verify).is_verified:
        sys.exit(1)
    return None


define_flags, main = program("compare", CompareOptions, compare_or_verify)
