"""Expand glob patterns of records. Does not import TensorFlow, so that a wrong pattern is reported immediately."""

import glob
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dataset.class_names import beside_records
from dataset.files.bounded_files import read_json
from dataset.files.file_kinds import FileKind, LabelFormat, annotations_in, holds_records, kind_of_file
from dataset.files.pixel_values import FULL_RANGE, WHITE_LEVEL, ValueRange
from program_support.errors import InputError
from program_support.file_patterns import matching_paths
from program_support.remote_addresses import is_remote, storage

_SHARD_NAME = re.compile(r"(?P<prefix>.*)-\d{5}-of-(?P<total>\d{5})(?P<suffix>\.tfrecord)?")
_NAMES_SHOWN = 5
_MOST_FILES = 1000
_BESIDE_RECORDS = (".classes.json", ".pbtxt")  # suffixes of files with class names
_CONVERT = "convert the data set to records first (dataset/create_tfrecord.py)"


def expand_glob(pattern: str | Path) -> list[str]:
    """Return the files that match a pattern, sorted, so that every rank numbers the records equally.

    Files at a remote address, such as s3://, are copied to this machine first, with the class names beside them.

    Raises:
        InputError: nothing matches (with the contents of the folder), if other files than records match, and if
            shards of two conversions match, because every image would be read twice.
    """
    paths = (
        storage().local_copies(str(pattern), beside=_BESIDE_RECORDS) if is_remote(pattern) else _local_files(pattern)
    )
    for path in paths:
        if kind := kind_of_file(path):
            raise InputError(f"{path}: is {kind.value}, expected records; {_advice_for_file(kind, among=paths)}")
    totals: dict[str, set[str]] = {}
    for path in paths:
        if match := _SHARD_NAME.fullmatch(path):
            totals.setdefault(match["prefix"], set()).add(match["total"])
    for prefix, by_total in totals.items():
        if len(by_total) > 1:
            counts = " and of ".join(str(int(total)) for total in sorted(by_total))
            raise InputError(
                f"{pattern}: {prefix} are shards of several conversions, of {counts}; expected shards of one"
            )
    return paths


def _local_files(pattern: str | Path) -> list[str]:
    if Path(pattern).is_dir():
        raise InputError(
            f"{pattern}: is a folder, expected a pattern that names records; {_advice_for_folder(Path(pattern))}"
        )
    paths = [path for path in matching_paths(pattern) if Path(path).is_file()]
    if not paths:
        advice = _patterns([Path(path) for path in matching_paths(f"{pattern}-*")])
        raise InputError(
            f"{pattern}: no file matches; {f'give {advice}' if advice else _folder_contents(Path(pattern).parent)}"
        )
    return paths


def _advice_for_file(kind: FileKind | LabelFormat, *, among: list[str]) -> str:
    """Return advice for a file that contains no records."""
    if patterns := _patterns([Path(other) for other in among]):
        return f"give {patterns}"
    return f"{_CONVERT}; the flag for a COCO JSON file is --val_json_file" if kind is FileKind.COCO else _CONVERT


def _advice_for_folder(folder: Path) -> str:
    """Return advice for a folder given instead of records."""
    files = sorted(path for path in folder.iterdir() if path.is_file())[:_MOST_FILES]
    if patterns := _patterns(files):
        return f"give {patterns}"
    if first := next(annotations_in(folder), None):
        return f"it holds no records but {first[0].name}, which is {first[1].value}: {_CONVERT}"
    return _folder_contents(folder)


def _patterns(paths: list[Path]) -> str:
    """Return patterns that match the records among some files, such as 'records/train-*' (8 files)."""
    counts: Counter[str] = Counter()
    for path in paths:
        if match := _SHARD_NAME.fullmatch(str(path)):
            counts[f"{match['prefix']}-*"] += 1
        elif holds_records(path):
            counts[str(path.with_name(f"*{path.suffix}"))] += 1
    return " or ".join(
        f"'{pattern}' ({count} file{'s' if count > 1 else ''})"
        for pattern, count in sorted(counts.items())[:_NAMES_SHOWN]
    )


def _folder_contents(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is itself a pattern" if glob.has_magic(str(folder)) else f"there is no folder {folder}"
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return f"the folder {folder} is empty"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"the folder {folder} holds {', '.join(names[:_NAMES_SHOWN])}{more}"


def value_range_of_records(record_paths: Iterable[str]) -> ValueRange:
    """Return the range of pixel values in the reports next to the records.

    Raises:
        InputError: they differ.
    """
    ranges = {}
    for path in sorted({beside_records(record, ".report.json") for record in record_paths}):
        content = read_json(str(path)) if path.exists() else None
        made_from = content.get("made_from") if isinstance(content, dict) else None
        if isinstance(made_from, dict):
            value_range = ValueRange(made_from.get("--black_level", 0), made_from.get("--white_level", WHITE_LEVEL))
            if value_range != FULL_RANGE:
                ranges[value_range] = path
    if len(ranges) > 1:
        raise InputError(
            "the images with more than 8 bits of the records were converted with different --black_level or "
            "--white_level: " + ", ".join(f"{black:g} to {white:g} ({path})" for (black, white), path in ranges.items())
        )
    return next(iter(ranges), FULL_RANGE)
