"""Read CSV tables with one box per row: with named columns, or without a header as keras-retinanet and AutoML write."""

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from dataset.conversion.annotations import (
    LEAST_SHARE,
    MOST_SHARE,
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_around,
    box_around_rotated,
    size_of_texts,
)
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import split_of_word
from dataset.files.bounded_files import csv_rows
from dataset.files.untrusted_values import is_set, listed, number_in_text, shown
from program_support.errors import InputError

_NAMES = {  # keys are in lower case, without '_', '.' and blanks
    "file": ("filename", "file", "image", "imagename", "imagepath", "path", "imageid"),
    "class": ("class", "classname", "label", "labelname", "category", "name"),
    "left": ("xmin", "x1", "left", "bboxx", "roix1"),
    "top": ("ymin", "y1", "top", "bboxy", "roiy1"),
    "right": ("xmax", "x2", "right", "roix2"),
    "bottom": ("ymax", "y2", "bottom", "roiy2"),
    "width": ("width", "imagewidth"),
    "height": ("height", "imageheight"),
    "box width": ("bboxwidth", "boxwidth"),
    "box height": ("bboxheight", "boxheight"),
    "crowd": ("isgroupof", "iscrowd"),
    "difficult": ("difficult", "isdifficult"),
    "rotation": ("rotation", "angle"),
    "split": ("split", "subset", "mluse"),
}
_SIDES = ("left", "top", "right", "bottom")
_NEEDED = ("file", "class", *_SIDES)
_RETINANET = ("file", *_SIDES, "class")
_MAKE_SENSE = ("class", "left", "top", "box width", "box height", "file", "width", "height")
_AUTOML = ("split", "file", "class", "left", "top", "x2", "y2", "right", "bottom", "x4", "y4")
_AUTOML_SPLITS = {"train", "training", "validation", "validate", "val", "valid", "test", "testing", "unassigned", ""}


class _Table(NamedTuple):
    columns: dict[str, int]
    in_shares: bool
    rows: Iterator[tuple[int, list[str]]]


def read_csv_boxes(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read a file, for the images of a `split` if folders name splits.

    Corners are in pixels, or in fractions of the image if the columns are those of Open Images or AutoML. A row without
    a box is an image without objects. Invalid rows are skipped.

    Raises:
        InputError: for an invalid header.
    """
    labels = LabelCollector(source=path)
    table = _table(path, labels.hasher.update)
    by_name: dict[str, AnnotatedImage] = {}
    for line, row in table.rows:
        image = None
        with labels.skipping(f"line {line}", kind="box"):
            if len(row) <= max(table.columns.values()):
                raise InputError(f"has {len(row)} fields, expected {max(table.columns.values()) + 1}")
            fields = {name: row[place].strip() for name, place in table.columns.items()}
            name = images.named(fields["file"], split=split, label_file=path)
            new = AnnotatedImage(file_name=name, in_shares=table.in_shares)
            image = by_name.setdefault(name, new)
            image.refused += 1  # undone when the row is read
            _add_size(image, fields)
            word = fields.get("split", "").lower()  # TRAIN, VALIDATION, TEST; UNASSIGNED and empty are none
            image.split = image.split or split_of_word("val" if word == "validate" else word)
            if any(fields.get(side) for side in _SIDES) or fields["class"]:
                image.objects.append(_object(fields, labels, in_shares=table.in_shares))
            image.refused -= 1
    labels.images = [*by_name.values()]
    if not table.in_shares and "width" not in table.columns:
        labels.note("the annotation file has no sizes: taken from the images")
    return labels.named_data_set()


def csv_header_error(path: str) -> str | None:
    """Return the error in the first row, which must contain the column names of boxes or one box, else None."""
    try:
        _table(path)
    except InputError as error:
        return str(error)
    return None


def _table(path: str, taken: Callable[[bytes], None] = lambda line: None) -> _Table:
    """Return the columns of a file; the separator (comma, semicolon or tab) is the one that yields most fields."""
    separator = max(",;\t", key=lambda candidate: _fields_of_first_row(path, candidate))
    rows = csv_rows(path, separator=separator, taken=taken)
    line, first = next(rows, (1, []))
    if unnamed := _unnamed_columns(first):
        columns = {name: place for place, name in enumerate(unnamed)}
        return _Table(columns, "x4" in columns, chain([(line, first)], rows))
    header = [re.sub(r"[_.\s]", "", field.lower()) for field in first]
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
    has_sides = {"box width", "box height"} <= {*columns}
    needed = [name for name in _NEEDED if not (has_sides and name in ("right", "bottom"))]
    if missing := [name for name in needed if name not in columns]:
        raise InputError(
            f"{path}: its first line {shown(','.join(first))} lacks columns for {listed(missing)}; "
            "expected columns such as filename,xmin,ymin,xmax,ymax,class, or rows path,x1,y1,x2,y2,class "
            "without a header"
        )
    return _Table(columns, {"imageid", "labelname"} <= {*header}, rows)


def _unnamed_columns(first: list[str]) -> tuple[str, ...]:
    """Return the columns of a table without a header, by the numbers in its first row; () for another table."""
    if len(first) == len(_RETINANET) and all(map(_is_number, first[1:5])):
        return _RETINANET
    if len(first) == len(_MAKE_SENSE) and all(map(_is_number, [*first[1:5], *first[6:]])) and not _is_number(first[5]):
        return _MAKE_SENSE
    for columns in (_AUTOML, _AUTOML[1:]):
        is_split = columns is not _AUTOML or first[0].strip().lower() in _AUTOML_SPLITS
        if len(first) == len(columns) and is_split and all(map(_is_number, first[columns.index("left") :])):
            return columns
    return ()


def _is_number(text: str) -> bool:
    """Return whether the text is a number, or empty as in rows of images without objects."""
    return not text.strip() or re.fullmatch(r"\s*[+-]?[\d.]+(e[+-]?\d+)?\s*", text, re.IGNORECASE) is not None


def _fields_of_first_row(path: str, separator: str) -> int:
    """Return the number of fields; 0 for an unreadable file, which its reader reports."""
    try:
        return len(next(csv_rows(path, separator=separator), (1, []))[1])
    except InputError:
        return 0


def _object(fields: dict[str, str], labels: LabelCollector, *, in_shares: bool) -> AnnotatedObject:
    category_id = labels.id_of(fields["class"])
    if "box width" in fields:
        x, y, width, height = (
            number_in_text(fields[name], where=name) for name in ("left", "top", "box width", "box height")
        )
        box = (x, y, width, height)
    else:
        names = [*_SIDES, *(name for name in ("x2", "y2", "x4", "y4") if fields.get(name))]
        corners = [_coordinate(fields[name], in_shares=in_shares, where=name) for name in names]
        left, top, right, bottom = corners[:4]
        # The two corners in AutoML's middle columns are optional, and may be the only ones with the largest values
        box = box_around(corners) if len(corners) == 8 else (left, top, right - left, bottom - top)
    degrees = number_in_text(fields["rotation"], where="rotation") if fields.get("rotation") else 0.0
    if degrees:
        box = box_around_rotated(box, degrees)
        labels.notes[ROTATED] += 1
    crowd = fields.get("crowd")
    return AnnotatedObject(
        category_id=category_id,
        box_xywh=box,
        is_crowd=is_set(None if crowd == "-1" else crowd, "IsGroupOf"),  # -1: unknown
        is_difficult=is_set(fields.get("difficult"), "difficult"),
    )


def _coordinate(text: str, *, in_shares: bool, where: str) -> float:
    if not in_shares:
        return number_in_text(text, where=where)
    share = number_in_text(text.replace(",", ".", 1), where=where)  # a comma in a fraction is a decimal separator
    if not LEAST_SHARE <= share <= MOST_SHARE:
        raise InputError(f"{where} is {shown(text)}, expected a fraction of the image's side, 0 to 1, not pixels")
    return share


def _add_size(image: AnnotatedImage, fields: dict[str, str]) -> None:
    """Set the size from the columns width and height; all rows of an image must agree."""
    size = None if image.in_shares else size_of_texts(fields.get("height"), fields.get("width"))
    if size and image.size not in (None, size):
        raise InputError(
            f"says {size[1]}x{size[0]} of {shown(image.file_name)}, an earlier line {image.size[1]}x{image.size[0]}"
        )
    image.size = size or image.size
