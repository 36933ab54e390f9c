"""Frames of videos, cameras and streams, read by OpenCV.

OpenCV applies the rotation in a video's metadata; boxes are in pixels of the rotated frames.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator

import cv2
import numpy as np

from efficientdet.inference.video_frames import VideoFrame
from efficientdet.prediction.inputs import find_inputs, is_stream, shown_source
from efficientdet.prediction.live_sources import NewestFrames, open_live, unreadable_camera
from program_support.errors import InputError

_USUAL_FPS = 25.0  # default for a source without a frame rate
_LARGEST_FPS = 1000.0  # some streams state the ticks of their clock
_MIN_DECODED = 0.9  # fraction of the file's frame count, which some formats only estimate from the duration


class UnreadableVideo(InputError):
    """A video file without a decodable frame."""


class VideoSource:
    """A video, camera or stream, opened for one iteration over its frames.

    The iteration over a camera or stream has None where no frame was received for some seconds, see `NewestFrames`.

    Attributes:
        name: file, number of a camera, device or address.
        is_live: frames come from a camera or an endless stream; a stream of known length is read as a file.
        frames_per_second: the frame rate that the source states, else 25.
        total: number of frames; 0: unknown.
    """

    def __init__(self, name: str | int, *, live: bool = False, max_offline_seconds: float | None = None):
        """Open a source; the arguments are those of `annotate_video`.

        Raises:
            UnreadableVideo: the file is not a video.
            InputError: the camera or stream cannot be opened.
        """
        self._capture = open_source(name, live=live)
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.name = name
        self.frames_per_second = rate if np.isfinite(rate) and 0 < rate <= _LARGEST_FPS else _USUAL_FPS
        self.total = max(int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
        self.is_live = live and not (is_stream(name) and self.total)
        self._stop, self._newest = threading.Event(), None
        if self.is_live:
            self._newest = NewestFrames(name, self._capture, self._stop, max_offline_seconds=max_offline_seconds)

    def stop(self) -> None:
        """End the iteration over a camera or stream, from any thread."""
        self._stop.set()

    def close(self) -> None:
        """Close the source."""
        (self._newest or self._capture).release()

    def __iter__(self) -> Iterator[VideoFrame | None]:
        """Yield the frames; raise InputError or UnreadableVideo if there is none."""
        last = None
        for frame in self._newest or self._frames_of_file():
            yield frame
            last = frame or last
        if last is None and self.is_live:
            raise unreadable_camera(self.name)
        if last is None:
            raise UnreadableVideo(f"{shown_source(self.name)}: contains no decodable frame")
        if self._newest:
            print(f"{shown_source(self.name)}: {self._newest.summary()}")
        elif last.number < _MIN_DECODED * self.total:
            print(
                f"{shown_source(self.name)}: only {last.number} of {self.total} frames could be decoded; is the file "
                "complete?"
            )

    def _frames_of_file(self) -> Iterator[VideoFrame]:
        for index in itertools.count():
            ok, frame = self._capture.read()
            if not ok:
                return
            seconds = self._capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
            if not np.isfinite(seconds) or (index and seconds <= 0):  # the container has no times
                seconds = index / self.frames_per_second
            yield VideoFrame(index + 1, seconds, None, np.ascontiguousarray(frame[..., ::-1]))


def open_source(source: str | int, *, live: bool):
    """Return OpenCV's capture of a video, camera or stream.

    Raises:
        InputError: it cannot be opened.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # suppress its messages; read when first used
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    if live:
        return open_live(source)
    if isinstance(source, str) and os.path.exists(source):
        source = os.path.abspath(source)  # FFmpeg takes 12: of 12:30.mp4 for a protocol
    capture = cv2.VideoCapture(source)
    if not capture.isOpened():
        raise UnreadableVideo(f"{shown_source(source)}: cannot be read as a video")
    return capture


def read_frames(
    source: str | os.PathLike[str] | int, *, max_offline_seconds: float | None = None
) -> Iterator[VideoFrame]:
    """Yield the frames of a video, camera or stream.

    Of a camera or stream only the newest frame is kept: frames that arrive while the caller works on another one are
    skipped. If the connection breaks off, the source is opened again, after a pause that grows from 1 to 30 seconds.

    Args:
        source: video file, number of a camera, device such as /dev/video0, or address such as rtsp://HOST/PATH.
        max_offline_seconds: time without a frame after which the iteration ends. Default: never.

    Raises:
        InputError: the source cannot be read.
    """
    name = str(source) if isinstance(source, int) else os.fspath(source)
    inputs = find_inputs([name])
    if inputs.images or (inputs.camera is None and len(inputs.videos) != 1):
        raise InputError(f"{name}: expected one video, camera or stream")
    opened = VideoSource(
        inputs.videos[0] if inputs.camera is None else inputs.camera,
        live=inputs.camera is not None,
        max_offline_seconds=max_offline_seconds,
    )
    with contextlib.closing(opened):
        for frame in opened:
            if frame is not None:
                yield frame
