"""Detection in videos, cameras and streams: an annotated copy of the video, read and written by OpenCV.

OpenCV applies the rotation in a video's metadata; boxes are in pixels of the rotated frames.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from efficientdet.inference.detect import Detector
from efficientdet.inference.video_frames import FrameDetections, VideoFrame
from efficientdet.options.model import MOST_DRAWN
from efficientdet.prediction.drawn_rows import drawn_rows
from efficientdet.prediction.inputs import is_stream, shown_source
from efficientdet.prediction.live_sources import NewestFrames, open_live, unreadable_camera
from program_support.atomic_files import unfinished_folder
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.signals import Listener

_USUAL_FPS = 25.0  # default for a source without a frame rate
_LARGEST_FPS = 1000.0  # some streams state the ticks of their clock
_MIN_DECODED = 0.9  # fraction of the file's frame count, which some formats only estimate from the duration

OnFrame = Callable[[FrameDetections], None]  # called after each frame, with its drawn detections


class UnreadableVideo(InputError):
    """A video file without a decodable frame."""


def annotate_video(
    model: Detector,
    source_name: str | int,
    target: Path,
    *,
    live: bool = False,
    batch_size: int = 1,
    max_boxes: int | None = MOST_DRAWN,
    on_frame: OnFrame = lambda *_: None,
) -> None:
    """Detect in every frame and write an MP4 with the frame rate of the source, atomically when it is complete.

    A camera or stream is read until Ctrl-C or SIGTERM, after which the file is finished. Frames that arrive during
    processing are skipped, and each annotated frame is repeated until the next one, so that the video has the duration
    of the recording. A stream of known length is read as a file.

    Args:
        model: the detector; its thresholds decide what is drawn.
        source_name: video file, number of a camera, device or address.
        target: the MP4.
        live: the source is a camera or stream.
        batch_size: number of frames per call of the detector.
        max_boxes: maximum number of drawn boxes per frame; None: all.
        on_frame: called after each frame.

    Raises:
        UnreadableVideo: the file is not a video.
        InputError: the camera cannot be read, or the output cannot be written.
    """
    source = open_source(source_name, live=live)
    writer, done, written = None, 0, 0
    try:
        frames_per_second, total = _rate_and_length(source)
        live = live and not (is_stream(source_name) and total)
        with (
            _folder_beside(target) as folder,
            _stop_event(live) as stop,
            Progress("video", total=None if live else total or None, noun="frame", rate_of="frames") as progress,
        ):
            if live:
                source = NewestFrames(source_name, source, stop)
            stream = source if live else _frames_of_file(source, frames_per_second)
            for frames in _batches(stream, 1 if live else batch_size):
                if writer is None:
                    size = frames[0].pixels.shape[:2]
                    writer = _open_writer(folder / "unfinished.mp4", frames_per_second, size, target)
                for frame, rows in zip(frames, model.detect([frame.pixels for frame in frames]), strict=True):
                    shown = rows.drawn(model.thresholds.of(rows.category_ids), max_boxes)
                    drawn = drawn_rows(frame.pixels, shown, model.class_names)[..., ::-1].copy()  # OpenCV uses BGR
                    if drawn.shape[:2] != size:  # a stream that was connected again; OpenCV would drop the frame
                        drawn = cv2.resize(drawn, size[::-1])
                    due = int(frame.seconds * frames_per_second) if live else written + 1
                    for _ in range(max(due - written, 1 if not written else 0)):
                        writer.write(drawn)
                        written += 1
                    done += 1
                    on_frame(FrameDetections(frame, shown))
                progress.advance(len(frames), images=len(frames))
            if writer is None:
                raise _without_frames(source_name, live=live)
            writer.release()
            _check_complete(folder / "unfinished.mp4", written, target)
            (folder / "unfinished.mp4").replace(target)
    finally:
        source.release()
    if total and done < _MIN_DECODED * total and not live:
        print(f"{shown_source(source_name)}: only {done} of {total} frames could be decoded; is the file complete?")
    print(f"wrote {target}")


def _without_frames(source: str | int, *, live: bool) -> InputError:
    if live:
        return unreadable_camera(source)
    return UnreadableVideo(f"{shown_source(source)}: contains no decodable frame")


def open_source(source: str | int, *, live: bool):
    """Return OpenCV's capture of a video, camera or stream.

    Raises:
        InputError: it cannot be opened.
    """
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # suppress its messages; read when first used
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    if live:
        return open_live(source)
    capture = cv2.VideoCapture(source)
    if not capture.isOpened():
        raise UnreadableVideo(f"{shown_source(source)}: cannot be read as a video")
    return capture


@contextlib.contextmanager
def _stop_event(live: bool) -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and SIGTERM set while a camera or stream is read; a second signal ends the process."""
    stop = threading.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            listener.end(number, "stopped immediately; the video is incomplete")
        stop.set()

    listener = Listener(on_signal)
    if live:
        listener.start()
    try:
        yield stop
    finally:
        if live:
            listener.stop()


def _rate_and_length(source) -> tuple[float, int]:
    """Return the frames per second and the number of frames (0: unknown)."""
    frames_per_second = source.get(cv2.CAP_PROP_FPS)
    usable = np.isfinite(frames_per_second) and 0 < frames_per_second <= _LARGEST_FPS
    return frames_per_second if usable else _USUAL_FPS, max(int(source.get(cv2.CAP_PROP_FRAME_COUNT)), 0)


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """Create a temporary folder for the block; raise InputError if it cannot be created."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(unfinished_folder(target))
        except OSError as error:
            raise InputError(f"{target.parent}: cannot be written ({error.strerror})") from error
        yield folder


def _open_writer(path: Path, frames_per_second: float, size: tuple[int, int], target: Path):
    """Return OpenCV's writer of an MP4 for frames of `size` (height, width).

    Raises:
        InputError: that fails.
    """
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), frames_per_second, (size[1], size[0]))
    if not writer.isOpened():
        raise InputError(f"{target}: a video of {size[1]} x {size[0]} pixels cannot be written")
    return writer


def _check_complete(path: Path, written: int, target: Path) -> None:
    """Raise InputError for a file with fewer frames: OpenCV reports no error of a full disk."""
    capture = cv2.VideoCapture(str(path))
    frames = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) if capture.isOpened() else 0
    capture.release()
    if frames < written:
        raise InputError(f"{target}: {frames} of {written} frames could be written; is the disk full?")


def _frames_of_file(capture, frames_per_second: float) -> Iterator[VideoFrame]:
    """Yield the frames of an opened video file, until its end."""
    for number in itertools.count():
        ok, frame = capture.read()
        if not ok:
            return
        seconds = capture.get(cv2.CAP_PROP_POS_MSEC) / 1000
        is_known = np.isfinite(seconds) and (seconds > 0 or not number)
        pixels = np.ascontiguousarray(frame[..., ::-1])
        yield VideoFrame(number + 1, seconds if is_known else number / frames_per_second, None, pixels)


def _batches(frames: Iterable[VideoFrame], batch_size: int) -> Iterator[list[VideoFrame]]:
    """Yield up to batch_size frames at a time."""
    iterator = iter(frames)
    while batch := list(itertools.islice(iterator, batch_size)):
        yield batch
