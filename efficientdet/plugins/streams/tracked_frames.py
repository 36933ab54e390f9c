"""Detection of objects in consecutive frames with their identities; see `Detector.track`."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.pixel_values import ValueRange
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.image_detections import AnyImage, ImageDetections, image_detections, pixels_of
from efficientdet.inference.video_frames import VideoFrame
from efficientdet.plugins.streams.tracker import Tracker
from efficientdet.tracking.lines_and_zones import TrackCounts
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError


class _OpenedFrame(NamedTuple):
    image: AnyImage
    pixels: np.ndarray  # [h, w, 3] uint8
    seconds: float | None


def tracked_frames(
    frames: Iterable[AnyImage | VideoFrame],
    detect: Callable[[list[np.ndarray]], list[DetectionRows]],
    class_names: ClassNames,
    *,
    thresholds: ScoreThresholds,
    frames_per_second: float,
    counts: TrackCounts | None,
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
        counts: counts that are updated with each frame.
        batch_size: number of frames per call of `detect`.
        value_range: see `Detector`.

    Raises:
        InputError: `frames` is one image, or one of them cannot be read.
    """
    if isinstance(frames, np.ndarray) and frames.ndim < 4:
        raise InputError(f"frames is one image {list(frames.shape)}; expected several frames")
    tracker = Tracker(thresholds, frames_per_second=frames_per_second, asked_by="track()")
    return _tracked(frames, detect, class_names, tracker, counts, batch_size, value_range)


def _tracked(
    frames: Iterable[AnyImage | VideoFrame],
    detect: Callable[[list[np.ndarray]], list[DetectionRows]],
    class_names: ClassNames,
    tracker: Tracker,
    counts: TrackCounts | None,
    batch_size: int,
    value_range: ValueRange,
) -> Iterator[ImageDetections]:
    opened = (_opened(one, number, value_range) for number, one in enumerate(frames))
    while batch := list(itertools.islice(opened, batch_size)):
        for one, rows in zip(batch, detect([one.pixels for one in batch]), strict=True):
            tracked = tracker.update(rows, one.seconds)
            if counts is not None:
                counts.update(tracked, class_names, live_ids=tracker.live_ids, size=one.pixels.shape[:2])
            yield image_detections(tracked, class_names, image=one.image, pixels=one.pixels, value_range=value_range)


def _opened(frame: AnyImage | VideoFrame, number: int, value_range: ValueRange) -> _OpenedFrame:
    if isinstance(frame, VideoFrame):
        return _OpenedFrame(frame.pixels, frame.pixels, frame.seconds)
    return _OpenedFrame(frame, pixels_of(frame, number, value_range), None)
