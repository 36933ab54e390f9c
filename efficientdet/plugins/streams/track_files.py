"""Track files: MOT Challenge text, "CVAT for video 1.1", and JSON of this project."""

import contextlib
import itertools
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from dataset.class_names import ClassNames
from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.atomic_files import flush_to_disk, report_write_errors, unfinished_path
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


_NO_XML = re.compile("[^\\t\\n\\r\\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # characters that XML cannot contain


class TrackedVideo(NamedTuple):
    """Properties of a video that track files state.

    Attributes:
        name: name without suffix.
        size: height and width.
        frames: number of frames.
        frames_per_second: the frame rate that the source states.
        class_names: names of the categories.
        counts: the counts of lines and zones, for the JSON.
    """

    name: str
    size: tuple[int, int]
    frames: int
    frames_per_second: float
    class_names: ClassNames
    counts: dict[str, Any]


def write_mot(out: IO[str], video: TrackedVideo, store: TrackStore) -> None:
    """Write the result format of the MOT Challenge: frame, id, x, y, width, height, score, -1, -1, -1.

    Frames and ids count from 1. The format has no classes; -1 is what its tools expect.
    """
    for box in store.by_frame():
        out.write(
            f"{box.frame},{box.track_id},{box.x:.2f},{box.y:.2f},{box.width:.2f},{box.height:.2f},{box.score:.5f},"
            "-1,-1,-1\n"
        )


def write_cvat_video(out: IO[str], video: TrackedVideo, store: TrackStore) -> None:
    """Write "CVAT for video 1.1": frames count from 0; a track does not show in frames without a detection."""
    height, width = video.size
    labels = "".join(f"<label><name>{_xml(name)}</name></label>" for name in video.class_names.names)
    out.write(
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n<version>1.1</version>\n'
        f"<meta><task><name>{_xml(video.name)}</name><size>{video.frames}</size><mode>interpolation</mode>"
        f"<labels>{labels}</labels>"
        f"<original_size><width>{width}</width><height>{height}</height></original_size></task></meta>\n"
    )
    name_of = dict(zip(video.class_names.category_ids, video.class_names.names, strict=True))
    for number, (_, boxes) in enumerate(store.by_track()):
        last = None
        for box in boxes:
            if last is None:
                label = quoteattr(_NO_XML.sub("?", name_of[box.category_id]))
                out.write(f'<track id="{number}" label={label} source="auto">\n')
            elif box.frame > last.frame + 1:
                out.write(_cvat_box(last, frame=last.frame, is_outside=True))
            out.write(_cvat_box(box, frame=box.frame - 1, is_outside=False))
            last = box
        assert last is not None
        if last.frame < video.frames:
            out.write(_cvat_box(last, frame=last.frame, is_outside=True))
        out.write("</track>\n")
    out.write("</annotations>\n")


def _cvat_box(box: TrackedBox, *, frame: int, is_outside: bool) -> str:
    return (
        f'<box frame="{frame}" outside="{is_outside:d}" occluded="0" keyframe="1" xtl="{box.x:.2f}" ytl="{box.y:.2f}" '
        f'xbr="{box.x + box.width:.2f}" ybr="{box.y + box.height:.2f}" z_order="0"></box>\n'
    )


def write_tracks_json(out: IO[str], video: TrackedVideo, store: TrackStore) -> None:
    """Write a JSON object with the video, its counts, and its tracks, one in each line."""
    height, width = video.size
    head = {
        "video": video.name,
        "width": width,
        "height": height,
        "frames": video.frames,
        "frames_per_second": video.frames_per_second,
        "categories": video.class_names.to_categories(),
        "counts": video.counts,
    }
    out.write(json.dumps(head)[:-1] + ', "tracks": [')
    name_of = dict(zip(video.class_names.category_ids, video.class_names.names, strict=True))
    for number, (track_id, iterator) in enumerate(store.by_track()):
        boxes = list(iterator)
        track = {
            "track_id": track_id,
            "category_id": boxes[0].category_id,
            "class": name_of[boxes[0].category_id],
            "first_seconds": round(boxes[0].seconds, 3),
            "last_seconds": round(boxes[-1].seconds, 3),
            "frames": [box.frame for box in boxes],
            "bboxes": [[box.x, box.y, box.width, box.height] for box in boxes],
            "scores": [box.score for box in boxes],
        }
        out.write(",\n" * bool(number) + "\n" * (not number) + json.dumps(track))
    out.write("\n]}\n")


_WRITERS: dict[str, tuple[str, Callable[[IO[str], TrackedVideo, TrackStore], None]]] = {
    "mot": (".txt", write_mot),
    "cvat_video": (".xml", write_cvat_video),
    "tracks": (".json", write_tracks_json),
}


def write_track_files(folder: Path, video: TrackedVideo, store: TrackStore, *, formats: Sequence[str]) -> list[Path]:
    """Write FORMAT/NAME.txt, .xml or .json for each of the formats, and return the paths.

    Raises:
        InputError: one cannot be written.
    """
    paths = []
    for name in formats:
        suffix, write = _WRITERS[name]
        paths.append(folder / name / f"{video.name}{suffix}")
        with _complete_file(paths[-1]) as out:
            write(out, video, store)
    return paths


@contextlib.contextmanager
def _complete_file(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that appears under its name when the block has ended."""
    unfinished = unfinished_path(path)
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as out:
                yield out
            flush_to_disk(unfinished)
            os.replace(unfinished, path)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)


def _xml(text: str) -> str:
    return escape(_NO_XML.sub("?", text))
