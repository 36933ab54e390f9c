"""MP4 files of annotated frames: a complete copy, or clips of the times at which objects are detected."""

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem
from efficientdet.inference.video_frames import FrameDetections, VideoFrame, utc_text
from efficientdet.plugins.streams.video_source import VideoSource
from efficientdet.prediction.inputs import shown_source
from program_support.atomic_files import flush_to_disk, report_write_errors, unfinished_folder, write_text
from program_support.errors import InputError, printable
from program_support.progress import duration

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


_LONGEST_CLIP_SECONDS = 300.0
_MAX_EARLIER_BYTES = 200_000_000
_JPEG_QUALITY = 95


class EventRecorder(Recorder):
    """Recorder of an MP4 and a JSON file for each event.

    An event begins with the first frame that has a detection and ends when no frame had one for `seconds`. Its clip
    begins `seconds` earlier. After 5 minutes the event continues in another clip. The frames before an event are kept
    as JPEG, at most 200 MB of them.

    A clip has the time of its first detection as its name: in UTC, such as 2026-11-27T01-43-56Z.mp4, or in the video
    file, such as 00-12-05.mp4.
    """

    def __init__(self, folder: Path, source: VideoSource, names: ClassNames, *, seconds: float):
        self._folder, self._source, self._names, self._seconds = folder, source, names, seconds
        self._earlier: deque[tuple[VideoFrame, bytes]] = deque()  # without pixels; the annotated frame as JPEG
        self._earlier_bytes = 0
        self._event: _Event | None = None
        self._used: set[str] = set()  # stems
        self._written: set[Path] = set()
        # Those of a camera stay: a recording cannot be repeated
        self._replaced = set() if source.is_live else {*folder.glob("*.mp4"), *folder.glob("*.json")}

    def close(self) -> None:
        """Remove the unfinished clip."""
        if self._event:
            self._event.file.close()

    def add(self, found: FrameDetections, draw: Draw) -> None:
        """Add a frame."""
        frame = found.frame
        if self._event and self._event.ends_before(frame.seconds, gap=self._seconds):
            self._end_event()
        pixels = draw()
        if self._event is None and not found.rows.scores.size:
            self._keep(frame, pixels)
            return
        if self._event is None:
            self._event = self._new_event(frame)
        self._event.write(frame.seconds, pixels)
        if found.rows.scores.size:
            self._event.count(found)

    def interrupt(self) -> None:
        """End the event, so that its clip exists even if the camera does not come back."""
        self._end_event()

    def complete(self) -> None:
        """End the event, remove the clips of an earlier run of a video file, and print the number of clips."""
        self._end_event()
        videos = len(self._written) // 2
        for path in self._replaced - self._written:
            path.unlink(missing_ok=True)
        print(f"{shown_source(self._source.name)}: {videos:,} event{'s' * (videos != 1)}; {self._folder}")

    def _keep(self, frame: VideoFrame, pixels: np.ndarray) -> None:
        """Keep a frame without detections for the beginning of the next clip."""
        jpeg = cv2.imencode(".jpg", pixels[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY))[1].tobytes()
        self._earlier.append((frame._replace(pixels=np.empty(0)), jpeg))
        self._earlier_bytes += len(jpeg)
        self._forget_before(frame.seconds - self._seconds)

    def _forget_before(self, seconds: float) -> None:
        while self._earlier and (self._earlier[0][0].seconds < seconds or self._earlier_bytes > _MAX_EARLIER_BYTES):
            self._earlier_bytes -= len(self._earlier.popleft()[1])

    def _new_event(self, frame: VideoFrame) -> "_Event":
        if frame.received_at:
            stem = f"{frame.received_at:%Y-%m-%dT%H-%M-%SZ}"
        else:
            minutes, seconds = divmod(int(frame.seconds), 60)
            stem = f"{minutes // 60:02d}-{minutes % 60:02d}-{seconds:02d}"
        self._forget_before(frame.seconds - self._seconds)
        first = self._earlier[0][0] if self._earlier else frame
        event = _Event(
            VideoFile(self._folder / f"{stem}.mp4", self._source.frames_per_second),
            frame,
            first.seconds,
            self._source.is_live,
        )
        for earlier, jpeg in self._earlier:
            decoded = np.asarray(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))
            event.write(earlier.seconds, decoded[..., ::-1])
        self._forget_before(math.inf)
        return event

    def _end_event(self) -> None:
        if self._event is None:
            return
        event, self._event = self._event, None
        # Clips of a camera are kept, also those of another program; clips of an earlier run with a file are replaced.
        if self._source.is_live:
            self._used = {path.stem.casefold() for path in self._folder.glob("*.*")}
        stem = distinct_stem(event.file.target.stem, self._used)
        event.file.target = event.file.target.with_name(f"{stem}.mp4")
        with contextlib.closing(event.file):
            event.file.complete()
        path = event.file.target.with_suffix(".json")
        record = event.record(shown_source(self._source.name), self._names)
        with report_write_errors(path):
            write_text(path, json.dumps(record, indent=1) + "\n")
        self._written |= {event.file.target, path}
        objects = ", ".join(f"{one['class']} {one['best_score']:.2f}" for one in record["objects"])
        print(f"wrote {event.file.target} ({duration(event.file.seconds)}; {printable(objects)})")


class _Event:
    """An event whose clip is being written."""

    def __init__(self, file: VideoFile, first: VideoFrame, start: float, is_live: bool):
        """first: the first frame with a detection; start: time in seconds at which the clip begins."""
        self.file, self.first, self.last, self.start, self._is_live = file, first, first, start, is_live
        self._best: dict[int, float] = {}  # category id -> score
        self._most: dict[int, int] = {}  # category id -> number of objects in one frame

    def ends_before(self, seconds: float, *, gap: float) -> bool:
        """Return whether the event, or its clip, has ended at a time."""
        return seconds - self.last.seconds > gap or seconds - self.start > _LONGEST_CLIP_SECONDS

    def write(self, seconds: float, pixels: np.ndarray) -> None:
        """Write an annotated frame [h, w, 3] uint8 RGB."""
        self.file.write(pixels, seconds - self.start if self._is_live else None)

    def count(self, found: FrameDetections) -> None:
        """Note the objects of a frame."""
        self.last = found.frame._replace(pixels=np.empty(0))
        numbers, counts = np.unique(found.rows.category_ids, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            score = float(found.rows.scores[found.rows.category_ids == number].max())
            self._best[number] = max(score, self._best.get(number, 0.0))
            self._most[number] = max(count, self._most.get(number, 0))

    def record(self, source: str, names: ClassNames) -> dict:
        """Return the content of the clip's JSON file, classes by falling score."""
        by_id = names.by_id()
        times = {"start": self.first, "end": self.last}
        return {
            "source": source,
            "video": self.file.target.name,
            **{key: frame.received_at and utc_text(frame.received_at) for key, frame in times.items()},
            **{f"{key}_seconds": round(frame.seconds, 3) for key, frame in times.items()},
            "video_start_seconds": round(self.start, 3),
            "objects": [
                {
                    "class": by_id[number],
                    "category_id": number,
                    "best_score": round(score, 5),
                    "most_at_once": self._most[number],
                }
                for number, score in sorted(self._best.items(), key=lambda item: -item[1])
            ],
        }
