"""An index of boxes by image on disk: Open Images would take gigabytes of memory, and its rows are in any order.

The index is an SQLite file; a process keeps only its page cache in memory.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from dataset.conversion.annotations import AnnotatedObject
from dataset.conversion.formats.open_images.open_images_rows import Box
from program_support.errors import InputError

_CACHE_KIB = 32 << 10
_TABLES = """
CREATE TABLE boxes (
    image TEXT, category INTEGER, x_min REAL, x_max REAL, y_min REAL, y_max REAL, crowd INTEGER, line INTEGER,
    PRIMARY KEY (image, category, x_min, x_max, y_min, y_max, crowd)
) WITHOUT ROWID
"""


class BoxIndex:
    """Images, numbered from 1 in the order of their names, and their boxes; pickled as a path."""

    def __init__(self, path: Path):
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def __reduce__(self):
        return BoxIndex, (self._path,)

    @classmethod
    def build(cls, path: Path, rows: Iterable[Box]) -> tuple["BoxIndex", int]:
        """Return the index of all boxes, and the number of duplicate rows, which are ignored.

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
                count = 0

                def counted() -> Iterator[Box]:
                    nonlocal count
                    for row in rows:
                        count += 1
                        yield row

                connection.executemany("INSERT OR IGNORE INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", counted())
                connection.execute("CREATE TABLE images (number INTEGER PRIMARY KEY, name TEXT)")
                connection.execute("INSERT INTO images (name) SELECT DISTINCT image FROM boxes ORDER BY image")
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise InputError(f"{path}: the index of the boxes cannot be written ({error})") from error
        index = cls(path)
        return index, count - index.count_boxes()

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
