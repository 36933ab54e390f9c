"""Read rows of the CSV files of Open Images one at a time: the largest file has gigabytes.

Format: https://storage.googleapis.com/openimages/web/download_v7.html. A row of boxes has ImageID, LabelName, XMin,
XMax, YMin, YMax (fractions of width and height) and five flags (1, 0, or -1 if unknown); V6 adds eight columns of
clicks. Columns are found by their names.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from dataset.conversion.annotations import LEAST_SHARE, MOST_SHARE, ReportEntry
from dataset.files.untrusted_values import listed, shown
from program_support.errors import InputError

Box = tuple[str, int, float, float, float, float, int, int]  # image, category, XMin, XMax, YMin, YMax, crowd, line

MOST_SKIPPED = 100_000  # their reasons are kept in memory
_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax", "IsGroupOf")
_CROWD = {"1": 1, "0": 0, "-1": 0}  # unknown counts as no crowd
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def boxes_in(
    rows: Iterator[tuple[int, list[str]]],
    path: str,
    *,
    category_of: dict[str, int | None],
    chosen: set[str] | None,
    tally: Counter[str],
    skipped: list[ReportEntry],
) -> Iterator[Box]:
    """Yield the boxes in the `chosen` images whose labels have a category id.

    `tally` counts the rows whose Confidence is not 1; `skipped` receives invalid rows and labels that `category_of`
    lacks.

    Raises:
        InputError: for an invalid header and for too many such rows.
    """
    header = next(rows, (1, []))[1]
    pick, has_confidence = _column_picker(header, path)

    def skip(line: int, reason: str) -> None:
        skipped.append(ReportEntry(kind="box", file=path, reason=f"line {line} {reason}"))
        if len(skipped) > MOST_SKIPPED:
            raise InputError(f"{path}: more than {MOST_SKIPPED} rows are invalid, such as: {skipped[0].reason}")

    for line, row in rows:
        if len(row) != len(header):
            skip(line, f"has {len(row)} fields, the header {len(header)}")
            continue
        image, label, *sides, group, confidence = pick(row)
        try:
            category = category_of[label]
        except KeyError:
            skip(
                line,
                f"has LabelName {shown(label)}, which the class descriptions lack; expected one of their labels, such "
                "as /m/01g317: the files have different versions",
            )
            continue
        if category is None or (chosen is not None and image not in chosen):
            continue
        if has_confidence and confidence != "1":
            try:
                if not _holds(confidence, tally):
                    continue
            except InputError as error:
                skip(line, str(error))
                continue
        try:
            left, right, top, bottom = map(float, sides)
            crowd = _CROWD[group]
        except (ValueError, KeyError):
            left = right = top = bottom = math.nan
        in_reach = (  # false for NaN
            LEAST_SHARE <= left <= MOST_SHARE
            and LEAST_SHARE <= right <= MOST_SHARE
            and LEAST_SHARE <= top <= MOST_SHARE
            and LEAST_SHARE <= bottom <= MOST_SHARE
        )
        if not in_reach or not _PLAIN_NAME.fullmatch(image):
            skip(line, _row_error(image, sides, group))
            continue
        yield image, category, left, right, top, bottom, crowd, line


def _column_picker(header: Sequence[str], path: str) -> tuple[Callable[[list[str]], tuple[str, ...]], bool]:
    """Return a function that selects the required fields of a row, Confidence last, and whether Confidence exists."""
    names = [name.strip() for name in header]
    missing = [name for name in _COLUMNS if names.count(name) != 1]
    if missing:
        raise InputError(
            f"{path}: is not a CSV of Open Images boxes: its first line lacks the column {missing[0]} or repeats "
            f"it (found {shown(listed(names))}); expected one such as oidv6-train-annotations-bbox.csv"
        )
    places = [names.index(name) for name in _COLUMNS]
    has_confidence = "Confidence" in names
    return itemgetter(*places, names.index("Confidence") if has_confidence else places[0]), has_confidence


def _holds(confidence: str, tally: Counter[str]) -> bool:
    """Return whether to keep a box with this Confidence, which is 1 for boxes drawn or confirmed by people."""
    try:
        value = float(confidence)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InputError(f"has Confidence {shown(confidence)}, expected a number from 0 to 1")
    if value < 1:
        tally["none" if value == 0 else "low"] += 1
    return value > 0


def _row_error(image: str, sides: Sequence[str], group: str) -> str:
    """Return the error of an invalid row."""
    for name, text in zip(_COLUMNS[2:], sides, strict=False):
        try:
            value = float(text)
        except ValueError:
            comma = ", with a decimal point" if "," in text else ""
            return f"has {name} {shown(text)}, expected a fraction of the image's side such as 0.25{comma}"
        if not LEAST_SHARE <= value <= MOST_SHARE:
            return f"has {name} {shown(text)}, expected a fraction of the image's side, 0 to 1, not pixels"
    if group not in _CROWD:
        return f"has IsGroupOf {shown(group)}, expected 1, 0 or -1"
    return f"has ImageID {shown(image)}, expected letters, digits, '_', '-' and '.': the name of the image without .jpg"
