"""Read CSV tables with one box per row: with named columns, or in keras-retinanet's format without a header."""

import hashlib
import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from dataset.conversion.annotations import (
    LEAST_SHARE,
    MOST_SHARE,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    Finding,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import ImageFolder
from dataset.files.csv_files import csv_rows
from dataset.files.untrusted_values import error_context, listed, number_in_text, shown
from program_support.errors import InputError

_NAMES = {  # case-insensitive, without '_' and blanks
    "file": ("filename", "file", "image", "imagename", "imagepath", "path", "imageid"),
    "class": ("class", "classname", "label", "labelname", "category", "name"),
    "left": ("xmin", "x1", "left"),
    "top": ("ymin", "y1", "top"),
    "right": ("xmax", "x2", "right"),
    "bottom": ("ymax", "y2", "bottom"),
    "width": ("width", "imagewidth"),
    "height": ("height", "imageheight"),
    "crowd": ("isgroupof", "iscrowd"),
}
_SIDES = ("left", "top", "right", "bottom")
_NEEDED = ("file", "class", *_SIDES)
_UNNAMED = ("file", *_SIDES, "class")


class _Table(NamedTuple):
    columns: dict[str, int]
    in_shares: bool
    rows: Iterator[tuple[int, list[str]]]


def read_csv_boxes(path: str, images: ImageFolder, *, split: str | None = None) -> AnnotatedDataSet:
    """Read a file, for the images of a `split` if folders name splits.

    Corners are in pixels, or in fractions of the image if the columns are those of Open Images. A row without a box is
    an image without objects. Raises InputError, with file, line and value, for an invalid header or row.
    """
    hasher, classes = hashlib.sha256(), ClassNumbering()
    table = _table(path, hasher)
    found: dict[str, AnnotatedImage] = {}
    for line, row in table.rows:
        where = f"{path}: line {line}"
        if len(row) <= max(table.columns.values()):
            raise InputError(f"{where} has {len(row)} fields, expected {max(table.columns.values()) + 1}")
        fields = {name: row[place].strip() for name, place in table.columns.items()}
        name = images.named(fields["file"], where=where, split=split)
        image = found.setdefault(name, AnnotatedImage(image_id=0, file_name=name, size=None, in_shares=table.in_shares))
        _add_size(image, fields, where=where)
        if any(fields[side] for side in _SIDES) or fields["class"]:
            with error_context(where):
                category_id = classes.id_of(fields["class"])
            left, top, right, bottom = (
                _coordinate(fields[side], in_shares=table.in_shares, where=f"{where}: {side}") for side in _SIDES
            )
            image.objects.append(
                AnnotatedObject(
                    annotation_id=None,
                    category_id=category_id,
                    box_xywh=(left, top, right - left, bottom - top),
                    is_crowd=fields.get("crowd") == "1",
                )
            )
    noted = []
    if table.in_shares:
        for image in found.values():
            images.in_pixels(image)
    elif "width" not in table.columns:
        noted.append(Finding(kind="image", file=path, reason="the annotation file has no sizes: taken from the images"))
    return AnnotatedDataSet(
        source=path,
        images=[*found.values()],
        class_names=classes.class_names(path),
        fingerprint=hasher.hexdigest(),
        listed_boxes=sum(len(image.objects) for image in found.values()),
        noted=noted,
    )


def csv_header_error(path: str) -> str | None:
    """Return the error in the first row, which must contain the column names of boxes or one box, else None."""
    try:
        _table(path, hashlib.sha256())
    except InputError as error:
        return str(error)
    return None


def _table(path: str, hasher) -> _Table:
    """Return the columns of a file; the separator (comma, semicolon or tab) is the one that yields most fields."""
    separator = max(",;\t", key=lambda candidate: _fields_of_first_row(path, candidate))
    rows = csv_rows(path, separator=separator, taken=hasher.update)
    line, first = next(rows, (1, []))
    header = ["".join(field.lower().replace("_", "").split()) for field in first]
    if len(first) == len(_UNNAMED) and all(map(_is_number, first[1:5])):
        return _Table({name: place for place, name in enumerate(_UNNAMED)}, False, chain([(line, first)], rows))
    columns = {}
    for name, known in _NAMES.items():
        places = [place for place, field in enumerate(header) if field in known]
        if len(places) > 1:
            raise InputError(
                f"{path}: has the columns {listed(shown(first[place]) for place in places)}, expected only "
                f"one for {name}: rename the others"
            )
        if places:
            columns[name] = places[0]
    if missing := [name for name in _NEEDED if name not in columns]:
        raise InputError(
            f"{path}: its first line {shown(','.join(first))} lacks columns for {listed(missing)}; "
            "expected columns such as filename,xmin,ymin,xmax,ymax,class, or rows path,x1,y1,x2,y2,class "
            "without a header"
        )
    in_shares = {"imageid", "labelname"} <= {*header}
    return _Table(columns, in_shares, rows)


def _is_number(text: str) -> bool:
    """Return whether the text is a number, or empty as in rows of images without objects."""
    return not text.strip() or re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", text, re.IGNORECASE) is not None


def _fields_of_first_row(path: str, separator: str) -> int:
    """Return the number of fields; 0 for an unreadable file, which its reader reports."""
    try:
        return len(next(csv_rows(path, separator=separator), (1, []))[1])
    except InputError:
        return 0


def _coordinate(text: str, *, in_shares: bool, where: str) -> float:
    if not in_shares:
        return number_in_text(text, where=where)
    share = number_in_text(text.replace(",", ".", 1), where=where)  # in a fraction, a comma is a decimal separator
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise InputError(f"{where} is {shown(text)}, expected a fraction of the image's side, 0 to 1, not pixels")
    return share


def _add_size(image: AnnotatedImage, fields: dict[str, str], *, where: str) -> None:
    """Set the size from the columns width and height; all rows of an image must agree."""
    texts = [fields.get("height", ""), fields.get("width", "")]
    if not any(texts) or image.in_shares:
        return
    height, width = (
        number_in_text(text, where=f"{where}: {name}") for text, name in zip(texts, ("height", "width"), strict=True)
    )
    if min(height, width) < 1 or height % 1 or width % 1:
        raise InputError(f"{where} says {shown(texts[1])} x {shown(texts[0])}, expected whole numbers of pixels")
    if image.size not in (None, (height, width)):
        raise InputError(
            f"{where} says {width:g}x{height:g} of {shown(image.file_name)}, an earlier line {image.size[1]}x"
            f"{image.size[0]}"
        )
    image.size = (int(height), int(width))
