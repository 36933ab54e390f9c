"""Read the CSV files of Open Images V4 to V7 without keeping their rows in memory: the largest file has gigabytes.

Format: https://storage.googleapis.com/openimages/web/download_v7.html. A row of boxes has ImageID, LabelName, XMin,
XMax, YMin, YMax (fractions of width and height) and five flags (1, 0, or -1 if unknown); V6 adds eight columns of
clicks. Columns are found by their names. Rows are in any order: an SQLite file has their index by image.
"""

import hashlib
import json
import math
import os
import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from dataset.conversion.annotations import (
    LEAST_SHARE,
    MOST_SHARE,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    NothingUsable,
    ReportEntry,
)
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.formats.csv_boxes import read_csv_boxes
from dataset.files.bounded_files import csv_rows, read_text_file
from dataset.files.untrusted_values import listed, shown
from efficientdet.plugins.label_formats.open_images_classes import describes_classes, selected_classes
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.signals import DeferredSignals

# Number of images of V6 with a box of MLPerf's 264 classes.
EXPECTED_IMAGES = {"mlperf-train": 1_170_301, "mlperf-validation": 24_781}
MOST_SKIPPED = 100_000  # their reasons are kept in memory
Box = tuple[str, int, float, float, float, float, int, int]  # image, category, XMin, XMax, YMin, YMax, crowd, line

_MIB = 1 << 20
_CACHE_KIB = 32 << 10
_TABLES = """
CREATE TABLE boxes (
    image TEXT, category INTEGER, x_min REAL, x_max REAL, y_min REAL, y_max REAL, crowd INTEGER, line INTEGER,
    PRIMARY KEY (image, category, x_min, x_max, y_min, y_max, crowd)
) WITHOUT ROWID
"""
_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax", "IsGroupOf")
_CROWD = {"1": 1, "0": 0, "-1": 0}  # unknown counts as no crowd
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def read_open_images_file(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read a file of boxes with the class descriptions in its folder if there are any, else with labels as names.

    All boxes are kept in memory, as those of other formats.
    """
    folder = Path(path).absolute().parent
    tables = FolderFiles(folder, (".csv",))
    files = [
        *map(tables.path, tables.names),
        *sorted(folder.parent.glob("*.csv")),
    ]  # for train/ and validation/
    descriptions = next((str(file) for file in files if describes_classes(str(file))), None)
    if descriptions is None:
        data = read_csv_boxes(path, images, with_masks=with_masks, split=split)
        if codes := [name for name in named_classes(data).names if name.startswith(("/m/", "/g/"))]:
            raise InputError(
                f"{path}: has labels such as {codes[0]}; expected class-descriptions-boxable.csv in its folder "
                "or the one above, with their names"
            )
        return data
    with tempfile.TemporaryDirectory() as index:
        data = read_open_images(
            object_annotations_file=path, class_descriptions_file=descriptions, index_folder=Path(index)
        )
        in_memory = [
            AnnotatedImage(file_name=images.named(image.file_name, split=split), objects=image.objects, in_shares=True)
            for image in data.images
        ]
    return replace(data, images=in_memory)


def read_open_images(
    *,
    object_annotations_file: str,
    class_descriptions_file: str,
    index_folder: Path,
    classes: str = "",
    image_ids_file: str = "",
    expect: str = "",
) -> AnnotatedDataSet:
    """Return the images with at least one box of the selected classes, in the order of their names, with these boxes.

    `image_ids_file` restricts them to the listed images. The images are stored in `index_folder`, which must exist as
    long as the data set is used. Image ids count from 1.

    Raises:
        InputError: a file is invalid, or `expect`, a key of `EXPECTED_IMAGES`, has another number of images.
        Interrupted: for a signal.
    """
    selected = selected_classes(classes, class_descriptions_file=class_descriptions_file)
    chosen = _read_image_ids(image_ids_file) if image_ids_file else None
    tally: Counter[str] = Counter()
    skipped: list[ReportEntry] = []
    choice = [selected.class_names.to_categories(), sorted(selected.category_of.items()), chosen and sorted(chosen)]
    hasher = hashlib.sha256(json.dumps(choice).encode())
    with _reading_progress(object_annotations_file) as line_read:

        def taken(line: bytes) -> None:
            hasher.update(line)
            line_read(line)

        rows = csv_rows(object_annotations_file, taken=taken)
        index = BoxIndex.build(
            index_folder / "boxes",
            boxes_in(
                rows,
                object_annotations_file,
                category_of=selected.category_of,
                chosen=chosen,
                tally=tally,
                skipped=skipped,
            ),
        )
    images = IndexedImages(index, range(1, index.count_images() + 1))
    if not images:
        if skipped:
            raise NothingUsable(object_annotations_file, skipped)
        of_listed = f" in an image of {image_ids_file}" if image_ids_file else ""
        raise InputError(f"{object_annotations_file}: contains no boxes of the selected classes{of_listed}")
    if expect and len(images) != EXPECTED_IMAGES[expect]:
        raise InputError(
            f"{object_annotations_file}: {len(images)} images have a box of the {len(selected.class_names)} classes; "
            f"expected {EXPECTED_IMAGES[expect]} by --expect={expect}: another split or version, or truncated"
        )
    noted = _noted_rows(object_annotations_file, tally, index.count_boxes())
    if selected.renamed:
        reason = f"class names differ from the list for the same labels: {listed(selected.renamed)}"
        noted.append(ReportEntry(kind="class", file=class_descriptions_file, reason=reason))
    if chosen is not None and (without := len(chosen) - len(images)):
        reason = f"{without} of {len(chosen)} images have no boxes of the selected classes and are not converted"
        noted.append(ReportEntry(kind="image", file=image_ids_file, reason=reason))
    return AnnotatedDataSet(
        source=object_annotations_file,
        images=images,
        class_names=selected.class_names,
        fingerprint=hasher.hexdigest(),
        listed_boxes=index.count_boxes() + len(skipped),
        skipped=skipped,
        noted=noted,
    )


def _noted_rows(path: str, tally: Counter[str], boxes: int) -> list[ReportEntry]:
    reasons = {
        "rows duplicate another row (image, class, box and IsGroupOf): duplicates are ignored": tally["boxes"] - boxes,
        "boxes have a Confidence between 0 and 1: converted like all other boxes": tally["low"],
        "rows have Confidence 0 (object absent): ignored": tally["none"],
    }
    return [ReportEntry(kind="box", file=path, reason=f"{count} {text}") for text, count in reasons.items() if count]


@contextmanager
def _reading_progress(path: str) -> Iterator[Callable[[bytes], None]]:
    """Show the progress of reading a file, whose lines are passed to the yielded function; may be interrupted."""
    size = os.stat(path).st_size if os.path.exists(path) else 0
    with (
        Progress("read", total=-(-size // _MIB), noun="MiB", slow_start=True) as progress,
        DeferredSignals() as signals,
    ):
        rest = 0

        def line_read(line: bytes) -> None:
            nonlocal rest
            rest += len(line)
            if rest >= _MIB:
                progress.advance(rest // _MIB)
                rest %= _MIB
                signals.check()

        yield line_read


def _read_image_ids(path: str) -> set[str]:
    """Read one image per line, as ImageID or, as in the official lists, train/ImageID."""
    text, _ = read_text_file(path)
    image_ids = {line.strip().rpartition("/")[2] for line in text.splitlines()} - {""}
    if not image_ids:
        raise InputError(f"{path}: contains no image ids")
    return image_ids


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

    `tally` counts the boxes, and the rows whose Confidence is not 1. `skipped` receives invalid rows and labels that
    `category_of` lacks.

    Raises:
        InputError: for an invalid header and for too many such rows.
    """
    header = next(rows, (1, []))[1]
    names = [name.strip() for name in header]
    if missing := [name for name in _COLUMNS if names.count(name) != 1]:
        raise InputError(
            f"{path}: is not a CSV of Open Images boxes: its first line lacks the column {missing[0]} or repeats "
            f"it (found {shown(listed(names))}); expected one such as oidv6-train-annotations-bbox.csv"
        )
    has_confidence = "Confidence" in names
    pick = itemgetter(*map(names.index, _COLUMNS), names.index("Confidence") if has_confidence else 0)
    for line, row in rows:
        try:
            if len(row) != len(header):
                raise InputError(f"has {len(row)} fields, the header {len(header)}")
            image, label, *sides, group, confidence = pick(row)
            if label not in category_of:
                raise InputError(
                    f"has LabelName {shown(label)}, which the class descriptions lack; expected one of their labels, "
                    "such as /m/01g317: the files have different versions"
                )
            category = category_of[label]
            if category is None or (chosen is not None and image not in chosen):
                continue
            if has_confidence and confidence != "1" and not _holds(confidence, tally):
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
                raise InputError(
                    f"is {shown(','.join(row))}, expected an ImageID without .jpg, a box in fractions of the image's "
                    "sides with decimal points, and IsGroupOf 1, 0 or -1"
                )
        except InputError as error:
            skipped.append(ReportEntry(kind="box", file=path, reason=f"line {line} {error}"))
            if len(skipped) > MOST_SKIPPED:
                raise InputError(
                    f"{path}: more than {MOST_SKIPPED} rows are invalid, such as: {skipped[0].reason}"
                ) from error
            continue
        tally["boxes"] += 1
        yield image, category, left, right, top, bottom, crowd, line


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


class BoxIndex:
    """Images, numbered from 1 in the order of their names, and their boxes; pickled as a path."""

    def __init__(self, path: Path):
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def __reduce__(self):
        return BoxIndex, (self._path,)

    @classmethod
    def build(cls, path: Path, rows: Iterable[Box]) -> "BoxIndex":
        """Return the index of all boxes; duplicate rows are ignored.

        Raises:
            InputError: it cannot be written, and any error of `rows`.
        """
        try:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                # The index is temporary and needs no durability: after a power failure it is rebuilt.
                for setting in (
                    "journal_mode = OFF",
                    "synchronous = OFF",
                    "locking_mode = EXCLUSIVE",
                    f"cache_size = -{_CACHE_KIB}",
                ):
                    connection.execute(f"PRAGMA {setting}")
                connection.execute(_TABLES)
                connection.execute("BEGIN")
                connection.executemany("INSERT OR IGNORE INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                connection.execute("CREATE TABLE images (number INTEGER PRIMARY KEY, name TEXT)")
                connection.execute("INSERT INTO images (name) SELECT DISTINCT image FROM boxes ORDER BY image")
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise InputError(f"{path}: the index of the boxes cannot be written ({error})") from error
        return cls(path)

    def count_boxes(self) -> int:
        """Return the number of boxes."""
        return self._rows("SELECT count(*) FROM boxes")[0][0]

    def count_images(self) -> int:
        """Return the number of images with a box."""
        return self._rows("SELECT count(*) FROM images")[0][0]

    def name(self, number: int) -> str:
        """Return the name of an image."""
        return self._rows("SELECT name FROM images WHERE number = ?", number)[0][0]

    def objects(self, name: str) -> list[AnnotatedObject]:
        """Return the objects of an image in the order of the CSV file, with boxes in fractions of the image."""
        return [
            AnnotatedObject(
                category_id=category,
                is_crowd=bool(crowd),
                box_xywh=(left, top, right - left, bottom - top),
            )
            for category, left, right, top, bottom, crowd in self._rows(
                "SELECT category, x_min, x_max, y_min, y_max, crowd FROM boxes WHERE image = ? ORDER BY line", name
            )
        ]

    def _rows(self, query: str, *values: object) -> list[tuple]:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(f"file:{quote(str(self._path))}?mode=ro&immutable=1", uri=True)
                self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise InputError(f"{self._path}: the index of the boxes cannot be read ({error}); convert again") from error


class IndexedImage:
    """An AnnotatedImage whose objects are read on access."""

    __slots__ = ("_index", "_name", "image_id")

    size, captions, in_shares, is_upright, refused = None, (), True, False, 0
    part, record_name = None, None

    def __init__(self, index: BoxIndex, number: int):
        self._index, self._name, self.image_id = index, index.name(number), number

    @property
    def file_name(self) -> str:
        """The file name of the image on the server."""
        return f"{self._name}.jpg"

    @property
    def objects(self) -> list[AnnotatedObject]:
        """The objects, read from the index on each access."""
        return self._index.objects(self._name)


class IndexedImages(Sequence):
    """A sequence of the images of an index, none of them in memory; slices have the same type."""

    def __init__(self, index: BoxIndex, numbers: range):
        self._index, self._numbers = index, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place):
        numbers = self._numbers[place]
        return IndexedImages(self._index, numbers) if isinstance(numbers, range) else IndexedImage(self._index, numbers)
