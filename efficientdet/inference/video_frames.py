"""Frames of videos, cameras and streams, and the detections in them."""

from datetime import datetime
from typing import NamedTuple

import numpy as np

from object_detection.coco.results import DetectionRows
from program_support.errors import InputError


class UnreadableVideo(InputError):
    """A video file without a decodable frame."""


class VideoFrame(NamedTuple):
    """A frame of a video, camera or stream.

    Attributes:
        number: number of the frame from 1; frames of a camera or stream that are skipped are not counted.
        seconds: time of the frame in the video; of a camera or stream, time since reading began.
        received_at: time in UTC at which a frame of a camera or stream was received; None: a frame of a file.
        pixels: [height, width, 3] uint8 RGB.
    """

    number: int
    seconds: float
    received_at: datetime | None
    pixels: np.ndarray


class FrameDetections(NamedTuple):
    """A frame and the detections in it that are drawn: with at least the score threshold, or of a track.

    Attributes:
        frame: the frame.
        rows: the detections, highest score first, boxes in pixels of the frame.
    """

    frame: VideoFrame
    rows: DetectionRows


def utc_text(moment: datetime) -> str:
    """Return a time in UTC such as 2026-11-27T01:43:56.120Z."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
