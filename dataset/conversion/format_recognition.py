"""Detect the label format of a data set from its content."""

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dataset.conversion.formats.csv_boxes import csv_header_error
from dataset.files.file_kinds import (
    LABEL_FORMATS,
    FileKind,
    annotations_in,
    holds_records,
    is_conversion_output,
    kind_and_advice,
    kind_of_file,
)
from dataset.files.untrusted_values import listed
from program_support.claimed_outputs import is_output
from program_support.errors import InputError

_EXPECTED = (
    "a COCO JSON file, Pascal VOC XML files, YOLO .txt files with a data.yaml or classes.txt, an Open Images CSV "
    "file, a CVAT XML file, labelme JSON files, a Label Studio JSON file, a JSON file of Frigate's events, a FiftyOne "
    "JSON file, .txt files of DOTA or VisDrone, or a CSV table of boxes"
)
_MOST_FILES = 1000  # files that records are looked for in
_SEVERAL = 3  # maximum number of files in a message


class RecognizedLabels(NamedTuple):
    """A format of `LABEL_FORMATS`, the reason, and the files that identify it (a sample in large folders)."""

    format: str
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
    by_format = {
        name: files
        for name, (_, kinds) in LABEL_FORMATS.items()
        if (files := [(file, kind) for file, kind in recognized if kind in kinds])
    }
    if label_format != "auto":
        title, files = LABEL_FORMATS[label_format][0], by_format.get(label_format, [])
        because = _first(files) if files else "--format selects it"
        return RecognizedLabels(label_format, f"labels: {title}, because {because}", [file for file, _ in files])
    if len(by_format) > 1:
        examples = "; ".join(_first(files) for files in by_format.values())
        raise InputError(
            f"--annotations={annotations}: holds labels of {len(by_format)} formats ({examples}); give the file "
            f"or folder to convert, or --format={'|'.join(by_format)}"
        )
    for name, files in by_format.items():
        return RecognizedLabels(
            name, f"labels: {LABEL_FORMATS[name][0]}, because {_first(files)}", [file for file, _ in files]
        )
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
    raise InputError(
        f"--annotations={annotations}: {_description(path, recognized)}; expected {_EXPECTED}, or --format to name one"
    )


def _first(files: Iterable[tuple[Path, FileKind]]) -> str:
    file, kind = next(iter(files))
    return f"{file} is {kind.value}"


def _description(path: Path, recognized: list[tuple[Path, FileKind]]) -> str:
    if not path.is_dir():
        return f"is {recognized[0][1].value}" if recognized else "contains no labels of a known format"
    names = sorted(other.name for other in path.iterdir())
    more = f" and {len(names) - _SEVERAL} more" if len(names) > _SEVERAL else ""
    holds = f"{listed(names[:_SEVERAL]) or 'nothing'}{more}"
    return f"no labels of a known format in this folder, which holds {holds}, or in three levels of folders below it"
