"""A video in, the same video with detections drawn into it out; OpenCV reads and writes the files.

A video that says how players should turn it comes out turned: OpenCV does so, and no boxes are told in numbers.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from dataset.class_names import ClassNames
from dataset.progress import Progress
from object_detection.atomic_files import unfinished_folder
from object_detection.coco_masks import decoded
from object_detection.coco_results import DetectionRows
from object_detection.drawing import draw_detections
from object_detection.errors import InputError

_USUAL_FPS = 25.0  # where a file does not say


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """A video to read, the MP4 to write, and which detections are drawn."""

    input_video: str
    output_video: str
    batch_size: int = 1
    min_score: float = 0.4
    max_boxes: int = 100


def annotate_video(config: VideoConfig, detect, names: ClassNames) -> None:
    """Detect in every frame and write an MP4 with the frames per second of the source; it appears when it is whole.

    `detect`: a list of images [h, w, 3] uint8 -> `DetectionRows` of each. Raises InputError for a file that
    is no video or a place that cannot be written.
    """
    source = _open_source(config.input_video)
    target = Path(config.output_video)
    writer = None
    try:
        frames_per_second, total = _rate_and_length(source)
        with _folder_beside(target) as folder, Progress("video", total=total, noun="frame") as progress:
            for frames in _batches(source, config.batch_size):
                writer = writer or _open_writer(folder / "unfinished.mp4", frames_per_second, frames[0].shape[:2])
                for frame, rows in zip(frames, detect(frames), strict=True):
                    writer.write(_drawn(frame, rows, names, config)[..., ::-1].copy())  # OpenCV's order is BGR
                progress.advance(len(frames), images=len(frames))
            if writer is None:
                raise InputError(f"{config.input_video}: holds no frame that can be decoded")
            writer.release()
            (folder / "unfinished.mp4").replace(target)
    finally:
        source.release()
    print(f"wrote {target}")


def checkpoint_detector(model, *, batch_size: int):
    """(detect, class names) of the detector that a `ModelConfig` names; see `annotate.Detect`."""
    from efficientdet.inference.opened_detection import detect_with_checkpoint
    from efficientdet.inference.opening import open_model

    restored, runtime = open_model(model)
    return detect_with_checkpoint(restored, batch_size=batch_size, compiled=runtime.use_xla, runtime=model.runtime,
                                  int8_images=model.int8_images)


def _open_source(path: str):
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # its own lines would hide ours; read when first used
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    source = cv2.VideoCapture(path)
    if not source.isOpened():
        raise InputError(f"{path}: cannot be read as a video")
    return source


def _rate_and_length(source) -> tuple[float, int]:
    """Frames a second, and how many there should be (0: the file does not say)."""
    frames_per_second = source.get(cv2.CAP_PROP_FPS)
    usable = np.isfinite(frames_per_second) and frames_per_second > 0
    return frames_per_second if usable else _USUAL_FPS, max(int(source.get(cv2.CAP_PROP_FRAME_COUNT)), 0)


@contextlib.contextmanager
def _folder_beside(target: Path) -> Iterator[Path]:
    """A folder that lasts for the block; raises InputError where none can be made."""
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(unfinished_folder(target))
        except OSError as error:
            raise InputError(f"--output_video={target.parent}: cannot be written there ({error.strerror})") from error
        yield folder


def _open_writer(path: Path, frames_per_second: float, size: tuple[int, int]):
    """OpenCV's writer of an MP4 for frames of `size` (height, width). Raises InputError where it cannot be opened."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), frames_per_second, (size[1], size[0]))
    if not writer.isOpened():
        raise InputError(f"--output_video={path.parent.parent}: cannot be written there")
    return writer


def _batches(source, batch_size: int) -> Iterator[list[np.ndarray]]:
    """Frames [h, w, 3] uint8 RGB, up to batch_size at a time, until no more can be decoded."""
    frames = []
    while True:
        there, frame = source.read()
        if there:
            frames.append(np.ascontiguousarray(frame[..., ::-1]))
        if frames and (not there or len(frames) == batch_size):
            yield frames
            frames = []
        if not there:
            return


def _drawn(frame: np.ndarray, rows: DetectionRows, names: ClassNames, config: VideoConfig) -> np.ndarray:
    shown = rows.chosen(np.flatnonzero(rows.scores >= config.min_score)[: config.max_boxes])
    return draw_detections(
        frame, shown.boxes, classes=np.searchsorted(names.category_ids, shown.category_ids), names=names.names,
        scores=shown.scores, masks=None if shown.masks is None else [decoded(mask) for mask in shown.masks])
