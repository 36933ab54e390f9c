"""Live sources of frames: cameras and network streams, read in a thread and opened again if they break off."""

import math
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import cv2
import numpy as np

from efficientdet.inference.video_frames import VideoFrame
from efficientdet.prediction.inputs import is_stream, shown_source
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
