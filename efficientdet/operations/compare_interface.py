"""The Python interface of compare.py; see `interface`."""

from collections.abc import Sequence
from typing import Any

from efficientdet.operations import compare_models
from efficientdet.operations.interface import AnyPath
from efficientdet.operations.results import ComparisonResult
from efficientdet.operations.settings import call, records_in
from efficientdet.options.compare import CompareOptions


def compare(
    models: Sequence[AnyPath],
    val_file_pattern: AnyPath | None = None,
    *,
    output_dir: AnyPath,
    val_json_file: AnyPath | None = None,
    **flags: Any,
) -> ComparisonResult:
    """Compare two or more detectors on the same images, as compare.py does.

    Args:
        models: checkpoints, files of `export`, SavedModels or .json files of detections (COCO's results format); the
            others are compared with the first.
        val_file_pattern: folder that `convert` wrote, or a glob of records; None with images=FOLDER.
        output_dir: folder for compare.html and compare.json.
        val_json_file: COCO json to evaluate against. Default: the boxes in the records.
        flags: further flags of compare.py, such as `images` and `annotations` instead of `val_file_pattern`.

    Returns:
        Differences with their paired 95 % intervals.

    Raises:
        InputError: a file or value is invalid, or a detector has other classes or other images.
        TypeError: a keyword is not a flag of compare.py.
    """
    return call(
        compare_models.compare,
        CompareOptions,
        "compare",
        models=models,
        val_file_pattern=val_file_pattern and records_in(val_file_pattern, "val"),
        output_dir=output_dir,
        val_json_file=val_json_file,
        **flags,
    )
