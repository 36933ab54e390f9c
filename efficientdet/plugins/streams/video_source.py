"""Frames of videos, cameras and streams, read by OpenCV.

OpenCV applies the rotation in a video's metadata; boxes are in pixels of the rotated frames.
"""

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import cv2
import numpy as np

from efficientdet.inference.video_frames import UnreadableVideo, VideoFrame
from efficientdet.prediction.inputs import find_inputs, is_stream, shown_source
from program_support.errors import InputError

_OPEN_TIMEOUT_MS = 5000
_READ_TIMEOUT_MS = 5000
_FIRST_PAUSE_SECONDS = 1.0  # pause before a source is opened again
_LONGEST_PAUSE_SECONDS = 30.0
_FIRST_FRAME_SECONDS = 10.0  # longest time until the first frame of an opened source
_SECONDS_UNTIL_NONE = 5.0  # time without a frame after which the iteration yields None
_WAIT_SECONDS = 0.1


def open_live(source: str | int):
    """Return OpenCV's capture of a camera or stream.

    Raises:
        InputError: in one line, if it cannot be opened.
    """
    if (capture := _opened(source)) is not None:
        return capture
    if isinstance(source, str) and is_stream(source):
        raise InputError(
            f"{shown_source(source)}: no video could be read from this address within "
            f"{_OPEN_TIMEOUT_MS / 1000:g} s; is it right, and the camera or server reachable?"
        )
    raise unreadable_camera(source)


def unreadable_camera(source: str | int) -> InputError:
    """Return the error of a camera or stream that cannot be read."""
    if isinstance(source, str) and is_stream(source):
        return InputError(
            f"{shown_source(source)}: no frame was received within {_FIRST_FRAME_SECONDS:g} s; is it a video stream?"
        )
    return InputError(
        f"camera {source}: cannot be read; expected the number of a connected camera, from 0, or its device such as "
        "/dev/video0, and permission to read it"
    )


def _opened(source: str | int):
    if isinstance(source, str) and is_stream(source):
        limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_TIMEOUT_MS, cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_TIMEOUT_MS]
        capture = cv2.VideoCapture(source, cv2.CAP_FFMPEG, limits)
    else:
        capture = cv2.VideoCapture(source)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)  # read current frames, not buffered ones
    if capture.isOpened():
        return capture
    capture.release()
    return None


class NewestFrames:
    """The newest frame of a camera or stream, read in a thread: frames that arrive during processing are dropped.

    A source that breaks off after its first frame is opened again. The pause before the next attempt doubles from 1 to
    30 seconds and is 1 second again after a connection that lasted longer than the pause.
    """

    def __init__(self, source: str | int, capture, stop: threading.Event, *, max_offline_seconds: float | None = None):
        """Start to read an opened capture, which the thread releases.

        Args:
            source: number of a camera, device or address.
            capture: OpenCV's capture of it.
            stop: ends the iteration.
            max_offline_seconds: time without a frame after which the iteration ends. Default: never.
        """
        self._source, self._stop = source, stop
        self._max_offline = math.inf if max_offline_seconds is None else max_offline_seconds
        self._ready, self._closed = threading.Condition(), threading.Event()
        self._frame: VideoFrame | None = None  # without a number, pixels in BGR
        self._received, self._returned, self._reconnected, self._has_ended = 0, 0, 0, False
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._receive, args=(capture,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[VideoFrame | None]:
        """Wait for frames and yield each newest one once, until the end; yield None after 5 s without a frame."""
        while True:
            waits = _SECONDS_UNTIL_NONE / _WAIT_SECONDS
            with self._ready:
                while self._frame is None and not self._has_ended and not self._stop.is_set() and waits > 0:
                    self._ready.wait(_WAIT_SECONDS)  # the handler of a signal cannot notify
                    waits -= 1
                frame, self._frame = self._frame, None
                if self._stop.is_set() or (frame is None and self._has_ended):
                    return
            if frame is None:
                yield None
                continue
            self._returned += 1
            yield frame._replace(number=self._returned, pixels=np.ascontiguousarray(frame.pixels[..., ::-1]))

    def summary(self) -> str:
        """Return the number of received and skipped frames and of connections."""
        return (
            f"{self._received:,} frames received, {self._received - self._returned:,} of them skipped, "
            f"{self._reconnected:,} times connected again"
        )

    def release(self) -> None:
        """Stop reading. The thread may need the timeout of a read to end."""
        self._closed.set()
        self._thread.join(_FIRST_PAUSE_SECONDS)  # so that a camera can be opened again at once

    def _receive(self, capture) -> None:
        try:
            self._receive_until_closed(capture)
        finally:
            with self._ready:
                self._has_ended = True
                self._ready.notify()

    def _receive_until_closed(self, capture) -> None:
        lost = None  # time of the first failure since the last frame
        opened, pause = self._start, _FIRST_PAUSE_SECONDS
        while not self._closed.is_set():
            frame = capture.read()[1] if capture is not None else None
            now = time.monotonic()
            if frame is not None:
                if lost is not None:
                    self._reconnected += 1
                    print(f"{shown_source(self._source)}: connected again after {now - lost:.0f} s")
                lost = None
                with self._ready:
                    self._received += 1
                    self._frame = VideoFrame(0, now - self._start, datetime.now(UTC), frame)
                    self._ready.notify()
                continue
            if not self._received and now - self._start < _FIRST_FRAME_SECONDS:
                self._closed.wait(_WAIT_SECONDS)  # a decoder may need the next key frame of a stream
                continue
            if not self._received:
                break
            if lost is None:
                lost = now
                pause = _FIRST_PAUSE_SECONDS if now - opened > pause else pause
                print(f"{shown_source(self._source)}: the connection broke off; connecting again")
            if capture is not None:
                capture.release()
            if now - lost >= self._max_offline:
                print(f"{shown_source(self._source)}: no frame for {self._max_offline:g} s; the recording ends")
                capture = None
                break
            self._closed.wait(min(pause, max(self._max_offline - (now - lost), 0)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            capture = None if self._closed.is_set() else _opened(self._source)
            opened = time.monotonic()
        if capture is not None:
            capture.release()


_USUAL_FPS = 25.0  # default for a source without a frame rate
_LARGEST_FPS = 1000.0  # some streams state the ticks of their clock
_MIN_DECODED = 0.9  # fraction of the file's frame count, which some formats only estimate from the duration


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
