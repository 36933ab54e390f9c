"""Identities of detections in consecutive frames: `Detector.track`, and the tracks of a video."""

import importlib.util
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.pixel_values import ValueRange
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.image_detections import AnyImage, ImageDetections, image_detections, pixels_of
from efficientdet.inference.video_frames import VideoFrame
from object_detection.coco.results import DetectionRows
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
        self.totals: Counter[int] = Counter()  # tracks by category id
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
                    self.totals[category_id] += 1
                    ours[track_id] = self.totals.total()
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
