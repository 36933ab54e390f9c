"""Identities of detections in consecutive frames: `Detector.track`, and the tracks of a video with their file."""

import importlib.util
import itertools
import math
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem
from dataset.files.pixel_values import ValueRange
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.image_detections import AnyImage, ImageDetections, image_detections, pixels_of
from efficientdet.inference.video_frames import VideoFrame
from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.atomic_files import flush_to_disk, report_write_errors, unfinished_path
from program_support.errors import InputError

TRACKERS = "trackers==2.6.1"  # as in scripts/environment.sh
USUAL_FPS = 25.0
_LOST_SECONDS = 1.0  # longest time without a detection after which a track continues
_LOW_SHARE = 0.5  # lowest score of a detection that continues a track, as a share of the threshold
_REFERENCE_FPS = 30.0  # the rate in which ByteTrack counts `lost_track_buffer`


def require_trackers(*, asked_by: str) -> None:
    """Raise InputError if the package `trackers`, or `supervision`, which it needs, is not installed."""
    for package in ("trackers", "supervision"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{asked_by} needs the package {package}: pip install -e '.[track]' && pip install --no-deps {TRACKERS}"
            )


class Tracker:
    """Tracker of the objects in one video: ByteTrack (Zhang et al. 2022) for each class.

    A track begins with detections that reach the score threshold of their class in two consecutive frames, and
    continues with detections of at least half of this score. It ends after one second without a detection.
    """

    def __init__(self, thresholds: ScoreThresholds, *, frames_per_second: float = USUAL_FPS, asked_by: str = "--track"):
        """Start without tracks.

        Args:
            thresholds: scores from which detections begin a track.
            frames_per_second: frame rate, for frames without a time, and to which the motion model is scaled.
            asked_by: what needs the packages, for messages.

        Raises:
            InputError: a package is not installed, or the frame rate is not above 0.
        """
        require_trackers(asked_by=asked_by)
        if not 0 < frames_per_second < math.inf:
            raise InputError(f"frames_per_second={frames_per_second}: expected a finite number above 0")
        self._thresholds, self._rate = thresholds, frames_per_second
        self._trackers: dict[int, Any] = {}  # by category id
        self._ids: dict[int, dict[int, int]] = {}  # by category id: ByteTrack's ids -> ours
        self._last_id = 0
        self._seconds: float | None = None

    def update(self, rows: DetectionRows, seconds: float | None = None) -> DetectionRows:
        """Return the detections of the next frame that belong to a track, highest score first, with `track_ids`.

        Args:
            rows: all detections in the frame, also those below the threshold.
            seconds: time of the frame. Default: that of the previous frame, and the time of one frame.
        """
        self._seconds = self._time_after_last(seconds)
        chosen, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        has_score = rows.scores >= _LOW_SHARE * self._thresholds.of(rows.category_ids)
        for category_id in sorted({*rows.category_ids[has_score].tolist(), *self._trackers}):
            which = np.flatnonzero(has_score & (rows.category_ids == category_id))
            chosen_here, ids_here = self._update_class(category_id, rows, which)
            chosen.append(chosen_here)
            ids.append(ids_here)
        numbers, track_ids = np.concatenate(chosen), np.concatenate(ids)
        order = np.argsort(numbers)
        return rows.chosen(numbers[order])._replace(track_ids=track_ids[order])

    def _update_class(self, category_id: int, rows: DetectionRows, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of tracked rows among `which`, detections of one class, and the ids of their tracks."""
        from supervision import Detections

        tracker = self._trackers.get(category_id)
        if tracker is None:
            tracker = self._trackers[category_id] = self._new_tracker(category_id)
        detections = Detections(
            xyxy=rows.boxes[which][:, [1, 0, 3, 2]].astype(np.float64),
            confidence=rows.scores[which].astype(np.float64),
            data={"row": which},
        )
        tracked = tracker.update(detections, timestamp=self._seconds)
        ours = self._ids.setdefault(category_id, {})
        numbers, ids = [], []
        for number, track_id in zip(tracked.data.get("row", ()), tracked.tracker_id.tolist(), strict=True):
            if track_id >= 0:  # a track that is confirmed
                if track_id not in ours:
                    self._last_id += 1
                    ours[track_id] = self._last_id
                numbers.append(int(number))
                ids.append(ours[track_id])
        live = {track.tracker_id for track in tracker.tracks}
        for ended in [track_id for track_id in ours if track_id not in live]:
            del ours[ended]
        if not tracker.tracks:
            del self._trackers[category_id], self._ids[category_id]
        return np.array(numbers, np.int64), np.array(ids, np.int64)

    def _new_tracker(self, category_id: int) -> Any:
        from trackers import ByteTrackTracker

        threshold = float(np.ravel(self._thresholds.of(np.array([category_id])))[0])
        return ByteTrackTracker(
            lost_track_buffer=round(_LOST_SECONDS * _REFERENCE_FPS),
            frame_rate=self._rate,
            track_activation_threshold=threshold,
            high_conf_det_threshold=threshold,
        )

    def _time_after_last(self, seconds: float | None) -> float:
        """Return the time of a frame, later than that of the one before, as a video's container may state others."""
        if self._seconds is None:
            return seconds or 0.0
        if seconds is None or seconds <= self._seconds:
            return self._seconds + 1 / self._rate
        return seconds


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
