"""Detection in videos, cameras and streams."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.inference.detect import Detector
from efficientdet.inference.video_frames import FrameDetections, VideoFrame
from efficientdet.options.infer import EVENT_SECONDS
from efficientdet.options.model import MOST_DRAWN
from efficientdet.plugins.streams.video_files import Recorder, VideoRecorder
from efficientdet.plugins.streams.video_source import VideoSource
from efficientdet.prediction.detection_messages import ReaderGone
from efficientdet.prediction.image_annotation import drawn_rows
from efficientdet.prediction.inputs import shown_source
from program_support.progress import Progress
from program_support.signals import Listener

OnFrame = Callable[[FrameDetections], None]  # called after each frame, with its drawn detections


def annotate_video(
    model: Detector,
    source_name: str | int,
    target: Path,
    *,
    live: bool = False,
    batch_size: int = 1,
    max_boxes: int | None = MOST_DRAWN,
    save: str = "video",
    event_seconds: float = EVENT_SECONDS,
    max_offline_seconds: float | None = None,
    track: bool = False,
    on_frame: OnFrame = lambda _: None,
) -> None:
    """Detect in every frame, and save an annotated copy or clips.

    A camera or stream is read until Ctrl-C or SIGTERM, after which the files are finished. Frames that arrive during
    processing are skipped, and each annotated frame is repeated until the next one, so that the video has the duration
    of the recording. A stream of known length is read as a file.

    Args:
        model: the detector; its thresholds decide what is drawn.
        source_name: video file, number of a camera, device or address.
        target: the MP4; of "events" the folder.
        live: the source is a camera or stream.
        batch_size: number of frames per call of the detector.
        max_boxes: maximum number of drawn boxes per frame; None: all.
        save: "video": an MP4 with the frame rate of the source, which appears when it is complete; "events": a clip for
            each time at which objects are detected; "none".
        event_seconds: time before and after an event that its clip shows.
        max_offline_seconds: time without a frame after which the recording of a camera or stream ends. Default: never.
        track: whether objects are tracked.
        on_frame: called after each frame.

    Raises:
        UnreadableVideo: the file is not a video.
        InputError: the camera cannot be read, or the output cannot be written.
    """
    with (
        contextlib.closing(VideoSource(source_name, live=live, max_offline_seconds=max_offline_seconds)) as source,
        _stopped_by_signals(source),
        contextlib.closing(_recorder(save, target, source, model, event_seconds)) as recorder,
        Progress(
            "video", total=None if source.is_live else source.total or None, noun="frame", rate_of="frames"
        ) as progress,
    ):
        tracks = _tracker(model, source) if track else None
        try:
            for found in _detections(model, source, 1 if source.is_live else batch_size, max_boxes, tracks):
                if found is None:
                    recorder.interrupt()
                    continue
                recorder.add(found, partial(drawn_rows, found.frame.pixels, found.rows, model.class_names))
                on_frame(found)
                progress.advance(images=1)
        except ReaderGone:
            if source.is_live:  # the part of a video file that was read is no annotated copy of it
                _complete(recorder, tracks, source, model.class_names)
            raise
        _complete(recorder, tracks, source, model.class_names)


def _detections(
    model: Detector,
    frames: Iterable[VideoFrame | None],
    batch_size: int,
    max_boxes: int | None,
    tracks: Any,  # of the plugin `streams`; None: objects are not tracked
) -> Iterator[FrameDetections | None]:
    """Yield the drawn detections of each frame; None where no frame was received for some seconds."""
    iterator = iter(frames)
    while batch := list(itertools.islice(iterator, batch_size)):
        received = [frame for frame in batch if frame is not None]
        if not received:  # only a live source, whose batches have one frame, yields None
            yield None
            continue
        for frame, rows in zip(received, model.detect([frame.pixels for frame in received]), strict=True):
            if tracks is None:
                yield FrameDetections(frame, rows.drawn(model.thresholds.of(rows.category_ids), max_boxes))
            else:
                tracked = tracks.update(rows, frame.seconds)
                yield FrameDetections(frame, tracked.chosen(np.arange(len(tracked.scores))[:max_boxes]))


def _tracker(model: Detector, source: VideoSource) -> Any:
    from efficientdet.plugins.streams.tracks import Tracker

    return Tracker(model.thresholds, frames_per_second=source.frames_per_second)


def _complete(recorder: Recorder, tracks: Any, source: VideoSource, class_names: ClassNames) -> None:
    """Write the files of a video, and print their names and the number of tracks of each class."""
    recorder.complete()
    if tracks is not None:
        name_of = class_names.by_id()
        listed = ", ".join(f"{name_of[number]} {count:,}" for number, count in tracks.totals.most_common())
        print(f"{shown_source(source.name)}: tracks: {tracks.totals.total():,}" + (f" ({listed})" if listed else ""))


def _recorder(save: str, target: Path, source: VideoSource, model: Detector, event_seconds: float) -> Recorder:
    if save == "events":
        from efficientdet.plugins.streams.video_files import EventRecorder

        return EventRecorder(target, source, model.class_names, seconds=event_seconds)
    if save == "video":
        return VideoRecorder(target, source.frames_per_second, is_live=source.is_live)
    return Recorder()


@contextlib.contextmanager
def _stopped_by_signals(source: VideoSource) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the iteration over a camera or stream; a second signal ends the process."""
    stopped: list[int] = []

    def on_signal(number: int) -> None:
        if stopped:
            listener.end(number, "stopped immediately; the video is incomplete")
        stopped.append(number)
        source.stop()

    listener = Listener(on_signal)
    if source.is_live:
        listener.start()
    try:
        yield
    finally:
        if source.is_live:
            listener.stop()
