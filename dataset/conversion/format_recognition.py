"""Detect the label format of a data set from its content, and name the right converter for another format."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dataset.conversion.formats.csv_boxes import csv_header_error
from dataset.files.file_kinds import (
    CORE_FORMATS,
    FORMAT_NAMES,
    FileKind,
    LabelFormat,
    annotations_in,
    holds_records,
    is_conversion_output,
    kind_and_advice,
    kind_of_file,
    label_formats,
)
from program_support.claimed_outputs import is_output
from program_support.errors import InputError

_EXPECTED = (
    "a COCO JSON file, Pascal VOC XML files, YOLO .txt files with a data.yaml or classes.txt, a CSV table of boxes, "
    f"or labels of {', '.join(FORMAT_NAMES[len(CORE_FORMATS) :])}"
)
_MOST_FILES = 1000  # files that records are looked for in


class RecognizedLabels(NamedTuple):
    """A format, the reason, and the files that identify it (a sample in large folders)."""

    format: LabelFormat
    reason: str
    files: list[Path]


def recognize(annotations: str, *, label_format: str = "auto") -> RecognizedLabels:
    """Return the format of a file or of a folder, which is searched three levels deep.

    A `label_format` other than "auto" is returned without detection.

    Raises:
        InputError: no labels, or labels of several formats, are found.
    """
    path, other_tables = Path(annotations), []
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long or in unreadable folders
        seen = [*annotations_in(path)]
        # Records, or proposals of next_images.py, may be next to their labels.
        seen = [one for one in seen if not (is_conversion_output(one[0]) or is_output(one[0], below=path))] or seen
        # Any table has the kind CSV.
        reasons = {file: csv_header_error(str(file)) for file, kind in seen if kind is FileKind.CSV}
        other_tables = [reason for reason in reasons.values() if reason]
        recognized = [(file, kind) for file, kind in seen if not reasons.get(file)]
    elif os.path.exists(path):
        recognized = [(path, kind)] if (kind := kind_of_file(path)) else []
    else:
        raise InputError(f"--annotations={annotations}: no such file or folder; expected {_EXPECTED}")
    formats, by_format = label_formats(), dict[str, list[tuple[Path, FileKind | LabelFormat]]]()
    for name, one in formats.items():
        if files := [(file, kind) for file, kind in recognized if kind is one or kind in one.kinds]:
            by_format[name] = files
    if label_format == "auto" and len(by_format) > 1:
        examples = "; ".join(_first(files) for files in by_format.values())
        raise InputError(
            f"--annotations={annotations}: holds labels of {len(by_format)} formats ({examples}); give the file "
            f"or folder to convert, or --format={'|'.join(by_format)}"
        )
    if label_format != "auto" or by_format:
        chosen = formats[next(iter(by_format)) if label_format == "auto" else label_format]
        files = by_format.get(chosen.name, [])
        reason = f"labels: {chosen.title}, because {_first(files) if files else '--format selects it'}"
        return RecognizedLabels(chosen, reason, [file for file, _ in files])
    for file, kind in recognized:
        if kind is FileKind.UNREAD:
            raise InputError(f"--annotations={annotations}: {file} is {kind_and_advice(file)[1]}")
    if other_tables:
        raise InputError(other_tables[0])
    candidates = itertools.islice([path] if path.is_file() else path.rglob("*"), _MOST_FILES)
    if records := next(filter(holds_records, candidates), None):
        raise InputError(
            f"--annotations={annotations}: {records} holds records already; train.py, eval.py and doctor.py read them "
            f"as they are, for example doctor.py --records='{records}'"
        )
    what = f"is {recognized[0][1].value}" if recognized else "holds no labels of a known format"
    raise InputError(f"--annotations={annotations}: {what}; expected {_EXPECTED}, or --format to name one")


def _first(files: Iterable[tuple[Path, FileKind | LabelFormat]]) -> str:
    file, kind = next(iter(files))
    return f"{file} is {kind.value}"


@contextlib.contextmanager
def recognized(*paths: str, expected: FileKind | LabelFormat) -> Iterator[None]:
    """Replace an InputError in the block by a clearer one if the files have another format.

    The format is checked only after an error, so that large files are not read twice.
    """
    try:
        yield
    except InputError as error:
        for message in (_other_format(path, expected) for path in paths if path):
            if message:
                raise InputError(message) from error
        raise


def _other_format(path: str, expected: FileKind | LabelFormat) -> str | None:
    """Return that a file, or the first one of a folder, has another format; None if the reader's error says more."""
    files = [*annotations_in(path)] if Path(path).is_dir() else [(Path(path), kind_of_file(path))]
    kinds = {kind for _, kind in files}
    if not files or kinds & {expected, None, FileKind.JSON, FileKind.COCO_RESULTS}:
        return None
    file, kind = files[0]
    assert kind is not None
    if kind is FileKind.CSV and isinstance(expected, LabelFormat):
        return None  # a file of Open Images without one of its columns
    if kind is FileKind.UNREAD:
        return f"{file}: is {kind_and_advice(file)[1]}"
    advice = f": use dataset/create_tfrecord.py --images=FOLDER --annotations={file.parent}"
    return f"{file}: is {kind.value}, expected {expected.value}{advice if kind.holds_annotations else ''}"
