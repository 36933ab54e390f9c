"""Live sources of frames: cameras and network streams, read in a thread and opened again if they break off."""

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
_PAUSE_SECONDS = 1.0  # pause before a stream is opened again
_GIVE_UP_SECONDS = 60.0  # longest time between two frames


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
        return InputError(f"{shown_source(source)}: no frame was received")
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

    A source that breaks off after its first frame is opened again until it has sent no frame for a minute.
    """

    def __init__(self, source: str | int, capture, stop: threading.Event):
        """Start to read an opened capture, which the thread releases; `stop` ends `read`."""
        self._source, self._stop = source, stop
        self._ready, self._closed = threading.Condition(), threading.Event()
        self._frame: VideoFrame | None = None  # without a number, pixels in BGR
        self._count, self._has_ended = 0, False
        self._start = time.monotonic()
        self._thread = threading.Thread(target=self._receive, args=(capture,), daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[VideoFrame]:
        """Wait for frames and yield each newest one once, until the end."""
        while True:
            with self._ready:
                while self._frame is None and not self._has_ended and not self._stop.is_set():
                    self._ready.wait(0.1)  # seconds; the handler of a signal cannot notify
                frame, self._frame = self._frame, None
            if frame is None or self._stop.is_set():
                return
            self._count += 1
            yield frame._replace(number=self._count, pixels=np.ascontiguousarray(frame.pixels[..., ::-1]))

    def release(self) -> None:
        """Stop reading. The thread may need the timeout of a read to end."""
        self._closed.set()
        self._thread.join(_PAUSE_SECONDS)  # so that a camera can be opened again at once

    def _receive(self, capture) -> None:
        lost = None  # time of the last frame before an interruption
        has_started = False
        while not self._closed.is_set():
            frame = capture.read()[1] if capture is not None else None
            now = time.monotonic()
            if frame is not None:
                if lost is not None:
                    print(f"{shown_source(self._source)}: connected again after {now - lost:.0f} s")
                lost, has_started = None, True
                with self._ready:
                    self._frame = VideoFrame(0, now - self._start, datetime.now(UTC), frame)
                    self._ready.notify()
                continue
            if not has_started:
                break
            if lost is None:
                lost = now
                print(f"{shown_source(self._source)}: the connection broke off; connecting again")
            if capture is not None:
                capture.release()
            if now - lost > _GIVE_UP_SECONDS:
                print(f"{shown_source(self._source)}: no frame for {_GIVE_UP_SECONDS:g} s; the recording ends")
                capture = None
                break
            self._closed.wait(_PAUSE_SECONDS)
            capture = None if self._closed.is_set() else _opened(self._source)
        if capture is not None:
            capture.release()
        with self._ready:
            self._has_ended = True
            self._ready.notify()
