"""MP4 files of annotated frames."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from efficientdet.inference.video_frames import FrameDetections
from program_support.atomic_files import flush_to_disk, unfinished_folder
from program_support.errors import InputError

_LONGEST_STILL_SECONDS = 60.0  # time for which a recording shows the last frame before an interruption

Draw = Callable[[], np.ndarray]  # returns the annotated frame [h, w, 3] uint8 RGB


class Recorder:
    """Recorder of annotated frames, here of none: `complete` is called after the last one, `close` in any case."""

    def add(self, found: FrameDetections, draw: Draw) -> None:
        """Add a frame."""

    def interrupt(self) -> None:
        """Note that a camera or stream has sent no frame for some seconds."""

    def complete(self) -> None:
        """Write what is unfinished, and print the names of the files."""

    def close(self) -> None:
        """Remove what is unfinished."""


class VideoFile:
    """An MP4 with a constant frame rate that appears when it is complete.

    `close` must be called; without `complete` before it the file does not appear.
    """

    def __init__(self, target: Path, frames_per_second: float):
        self.target, self._frames_per_second = target, frames_per_second
        self._size: tuple[int, int] | None = None  # height and width of the first frame
        self._written, self._start = 0, 0.0
        self._stack = contextlib.ExitStack()
        try:
            folder = self._stack.enter_context(unfinished_folder(target.absolute()))  # as in `open_source`
            self._path = folder / "unfinished.mp4"
        except OSError as error:
            raise InputError(f"{target.parent}: cannot be written ({error.strerror})") from error

    def close(self) -> None:
        """Remove the unfinished file."""
        self._stack.close()

    @property
    def seconds(self) -> float:
        """Return the duration so far."""
        return self._written / self._frames_per_second

    def write(self, pixels: np.ndarray, seconds: float | None = None) -> None:
        """Write a frame [h, w, 3] uint8 RGB; one of another size than the first is resized.

        seconds: time in the recording at which the frame must end: it is repeated or left out so that the file has the
            duration of the recording, except for interruptions of more than a minute. None: write the frame once.

        Raises:
            InputError: the file cannot be written.
        """
        drawn = pixels[..., ::-1].copy()  # OpenCV uses BGR
        if self._size is None:
            self._size = drawn.shape[:2]
            self._writer = self._open_writer(*self._size)
        if drawn.shape[:2] != self._size:  # a stream that was connected again; OpenCV would drop the frame
            drawn = cv2.resize(drawn, self._size[::-1])
        count = 1
        if seconds is not None:
            still = seconds - self._start - self._written / self._frames_per_second
            self._start += max(still - _LONGEST_STILL_SECONDS, 0)
            due = int((seconds - self._start) * self._frames_per_second)
            count = max(due - self._written, 0 if self._written else 1)
        for _ in range(count):
            self._writer.write(drawn)
        self._written += count

    def complete(self) -> None:
        """Let the file appear.

        Raises:
            InputError: fewer frames than written are in it: OpenCV reports no error of a full disk.
        """
        self._writer.release()
        capture = cv2.VideoCapture(str(self._path))
        frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
        capture.release()
        if frames < self._written:
            raise InputError(f"{self.target}: {frames} of {self._written} frames could be written; is the disk full?")
        flush_to_disk(self._path)
        self._path.replace(self.target)

    def _open_writer(self, height: int, width: int) -> cv2.VideoWriter:
        writer = cv2.VideoWriter(
            str(self._path), cv2.VideoWriter.fourcc(*"mp4v"), self._frames_per_second, (width, height)
        )
        if not writer.isOpened():
            raise InputError(f"{self.target}: a video of {width} x {height} pixels cannot be written")
        self._stack.callback(writer.release)
        return writer


class VideoRecorder(Recorder):
    """Recorder of a complete video or recording as one MP4."""

    def __init__(self, target: Path, frames_per_second: float, *, is_live: bool):
        self._file, self._is_live = VideoFile(target, frames_per_second), is_live

    def close(self) -> None:
        """Remove the unfinished file."""
        self._file.close()

    def add(self, found: FrameDetections, draw: Draw) -> None:
        """Write a frame."""
        self._file.write(draw(), found.frame.seconds if self._is_live else None)

    def complete(self) -> None:
        """Let the file appear."""
        self._file.complete()
        print(f"wrote {self._file.target}")
