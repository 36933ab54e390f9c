"""The boxes of all tracks of a video, in a temporary file, so that a recording of days does not fill the memory."""

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.errors import InputError


class TrackedBox(NamedTuple):
    """An object in one frame.

    Attributes:
        track_id: its identity, from 1.
        category_id: the data set's own.
        frame: number of the frame, from 1.
        seconds: time of the frame.
        x, y, width, height: the box in pixels.
        score: from 0 to 1.
    """

    track_id: int
    category_id: int
    frame: int
    seconds: float
    x: float
    y: float
    width: float
    height: float
    score: float


class TrackStore:
    """A store of tracked boxes. The file is removed with the process; SQLite chooses its place, as SQLITE_TMPDIR."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # a temporary file, only used beyond the cache
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute(f"CREATE TABLE boxes ({', '.join(TrackedBox._fields)})")

    def add(self, rows: DetectionRows, *, frame: int, seconds: float) -> None:
        """Add the detections of a frame with `track_ids`.

        Raises:
            InputError: the disk is full.
        """
        assert rows.track_ids is not None
        boxes = boxes_xywh(rows.boxes).round(2).tolist()
        columns = zip(rows.track_ids.tolist(), rows.category_ids.tolist(), boxes, rows.scores.tolist(), strict=True)
        values = [(track, category, frame, seconds, *box, round(score, 5)) for track, category, box, score in columns]
        with _reported_errors():
            self._database.executemany(f"INSERT INTO boxes VALUES ({', '.join('?' * 9)})", values)

    def by_frame(self) -> Iterator[TrackedBox]:
        """Yield all boxes in the order of their frames and identities."""
        yield from self._ordered("frame, track_id")

    def by_track(self) -> Iterator[tuple[int, Iterator[TrackedBox]]]:
        """Yield each identity and its boxes in the order of their frames."""
        yield from itertools.groupby(self._ordered("track_id, frame"), lambda box: box.track_id)

    def close(self) -> None:
        """Remove the file."""
        self._database.close()

    def _ordered(self, order: str) -> Iterator[TrackedBox]:
        with _reported_errors():
            yield from map(TrackedBox._make, self._database.execute(f"SELECT * FROM boxes ORDER BY {order}"))


@contextlib.contextmanager
def _reported_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise InputError(f"the tracks cannot be stored in the folder for temporary files ({error})") from error
