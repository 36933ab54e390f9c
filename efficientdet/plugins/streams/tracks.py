"""Identities of detections in consecutive frames: `Detector.track`, and the tracks of a video with their file."""

import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem
from dataset.files.pixel_values import ValueRange
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.image_detections import AnyImage, ImageDetections, image_detections, pixels_of
from efficientdet.inference.video_frames import VideoFrame
from efficientdet.plugins.streams.tracker import USUAL_FPS, Tracker
from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.atomic_files import flush_to_disk, report_write_errors, unfinished_path
from program_support.errors import InputError


def tracked_frames(
    frames: Iterable[AnyImage | VideoFrame],
    detect: Callable[[list[np.ndarray]], list[DetectionRows]],
    class_names: ClassNames,
    *,
    thresholds: ScoreThresholds,
    frames_per_second: float,
    batch_size: int,
    value_range: ValueRange,
) -> Iterator[ImageDetections]:
    """Return an iterator over the tracked detections of each frame.

    Args:
        frames: see `Detector.track`.
        detect: the detector's function, for up to `batch_size` images.
        class_names: ids and names of the categories.
        thresholds: scores from which detections begin a track.
        frames_per_second: frame rate of frames without a time.
        batch_size: number of frames per call of `detect`.
        value_range: see `Detector`.

    Raises:
        InputError: `frames` is one image, or one of them cannot be read.
    """
    if isinstance(frames, np.ndarray) and frames.ndim < 4:
        raise InputError(f"frames is one image {list(frames.shape)}; expected several frames")
    tracker = Tracker(thresholds, frames_per_second=frames_per_second, asked_by="track()")

    def tracked() -> Iterator[ImageDetections]:
        numbered = enumerate(frames)
        while batch := [_opened(*one, value_range) for one in itertools.islice(numbered, batch_size)]:
            detected = detect([pixels for _, pixels, _ in batch])
            for (image, pixels, seconds), rows in zip(batch, detected, strict=True):
                tracked_rows = tracker.update(rows, seconds)
                yield image_detections(tracked_rows, class_names, image=image, pixels=pixels, value_range=value_range)

    return tracked()


def _opened(
    number: int, frame: AnyImage | VideoFrame, value_range: ValueRange
) -> tuple[AnyImage, np.ndarray, float | None]:
    """Return the image, its pixels [h, w, 3] uint8 and its time in seconds."""
    if isinstance(frame, VideoFrame):
        return frame.pixels, frame.pixels, frame.seconds
    return frame, pixels_of(frame, number, value_range), None


class VideoTracks:
    """The tracks of one video. Only its file keeps all boxes; in memory are those of the tracks that have not ended."""

    def __init__(
        self,
        mot_folder: Path | None,
        thresholds: ScoreThresholds,
        class_names: ClassNames,
        *,
        frames_per_second: float = USUAL_FPS,
    ):
        """Start without tracks.

        Args:
            mot_folder: the folder of the file of `--format=mot`; None: none is written.
            thresholds: scores from which detections begin a track.
            class_names: names of the categories.
            frames_per_second: frame rate of the source.
        """
        self._folder, self._class_names = mot_folder, class_names
        self._tracker = Tracker(thresholds, frames_per_second=frames_per_second)
        self._lines = None if self._folder is None else tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._totals: Counter[int] = Counter()  # tracks by category id
        self._last_id, self._frames = 0, 0

    def update(self, rows: DetectionRows, seconds: float) -> DetectionRows:
        """Return the detections of the next frame that belong to a track, with `track_ids`.

        Args:
            rows: all detections, also those below the threshold.
            seconds: time of the frame.

        Raises:
            InputError: the disk is full.
        """
        self._frames += 1
        tracked = self._tracker.update(rows, seconds)
        assert tracked.track_ids is not None
        self._totals.update(tracked.category_ids[tracked.track_ids > self._last_id].tolist())
        self._last_id = max(self._last_id, int(tracked.track_ids.max(initial=0)))
        if self._lines is not None:
            with report_write_errors(Path(tempfile.gettempdir())):
                self._lines.writelines(_mot_lines(tracked, self._frames))
        return tracked

    def write(self, name: str, *, replace: bool = True) -> list[Path]:
        """Write the result format of the MOT Challenge, and return the path of its file, if there is one.

        Args:
            name: name of the video without suffix.
            replace: a file of this name is replaced; else the name gets a number if one exists.

        Raises:
            InputError: it cannot be written.
        """
        if self._folder is None or self._lines is None:
            return []
        if not replace:
            name = distinct_stem(name, {path.stem.casefold() for path in self._folder.glob("*")})
        path = self._folder / f"{name}.txt"
        with report_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines.seek(0)
            try:
                with open(unfinished_path(path), "w", encoding="ascii") as out:
                    shutil.copyfileobj(self._lines, out)
                flush_to_disk(unfinished_path(path))
                os.replace(unfinished_path(path), path)
            finally:
                unfinished_path(path).unlink(missing_ok=True)
        return [path]

    def close(self) -> None:
        """Remove the temporary file."""
        if self._lines is not None:
            self._lines.close()

    def __str__(self) -> str:
        name_of = dict(zip(self._class_names.category_ids, self._class_names.names, strict=True))
        listed = ", ".join(f"{name_of[number]} {count:,}" for number, count in self._totals.most_common())
        return f"tracks: {self._totals.total():,}" + (f" ({listed})" if listed else "")


def _mot_lines(rows: DetectionRows, frame: int) -> Iterator[str]:
    """Yield frame, id, x, y, width, height, score, -1, -1, -1 of each box; frames and ids count from 1.

    The format has no classes; -1 is what its tools expect.
    """
    assert rows.track_ids is not None
    boxes, scores = boxes_xywh(rows.boxes), rows.scores
    for number in np.argsort(rows.track_ids, kind="stable"):
        sides = ",".join(f"{side:.2f}" for side in boxes[number].tolist())
        yield f"{frame},{rows.track_ids[number]},{sides},{scores[number]:.5f},-1,-1,-1\n"
