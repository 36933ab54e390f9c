"""Detection from Python: images of any kind and size in, boxes with names out; free of Keras and TensorFlow."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from dataset.class_names import ClassNames
from dataset.files.image_files import as_rgb, read_image
from dataset.files.image_formats import DECODING_ERRORS
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.image_rows import Detect
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import decoded
from program_support.errors import InputError

AnyImage = str | os.PathLike[str] | Image.Image | np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageDetections:
    """What was found in one image: N objects, best first."""

    boxes: np.ndarray  # [N, 4] float32 x_min, y_min, x_max, y_max in pixels of the image as it was given
    scores: np.ndarray  # [N] float32, 0 .. 1
    category_ids: np.ndarray  # [N] int64, numbers of the data set, such as COCO's
    names: tuple[str, ...]  # N names of those categories
    masks: np.ndarray | None = None  # [N, h, w] bool in pixels of the image, of detectors that have masks

    def __len__(self) -> int:
        return len(self.scores)


class LoadedDetector:
    """A detector with its weights; made by `efficientdet.load_detector`."""

    def __init__(self, detect: Detect, class_names: ClassNames, thresholds: ScoreThresholds | None = None, *, batch_size: int):
        """detect: takes up to `batch_size` images at a time and knows the categories of `class_names`; stays at hand for who
        wants the rows of results themselves. thresholds: the scores from which `predict` returns detections."""
        self.detect, self.class_names, self._batch_size = detect, class_names, batch_size
        self.thresholds = thresholds or ScoreThresholds()

    def predict(self, images: AnyImage | Sequence[AnyImage], *, min_score: float | None = None) -> list[ImageDetections]:
        """Detect in one image or in several; one result for each, in their order, also where there is one.

        images: file names, PIL images or arrays [h, w, 3] uint8 (red, green, blue), mixed and of any sizes. Files are
        turned upright as their EXIF says, and boxes are of the upright image; a PIL image or an array is taken as it is.
        min_score: lowest score of what is returned, for all classes; 0 for everything. None: the threshold of the best F1
        of each class on the validation data, where the model stores it, else 0.4; `print(detector.thresholds)` says which.
        Raises InputError, one line, for what is no image.
        """
        wanted = [images] if _is_one_image(images) else list(images)
        found = []
        for batch in _batches(wanted, self._batch_size):
            for rows, image in zip(self.detect(batch), batch, strict=True):
                least = self.thresholds.of(rows.category_ids) if min_score is None else min_score
                found.append(_result(rows.chosen(np.asarray(rows.scores) >= least), self.class_names, size=image.shape[:2]))
        return found


def _is_one_image(images) -> bool:
    """A list or tuple of images is several; an array of rank 4, a batch, too. What is neither is told of as an image."""
    if isinstance(images, np.ndarray):
        return images.ndim != 4
    return isinstance(images, str | bytes | os.PathLike) or not isinstance(images, Iterable)


def _batches(images: Sequence, size: int) -> Iterator[list[np.ndarray]]:
    """Pixels of up to `size` images at a time, read when they are needed."""
    for first in range(0, len(images), size):
        yield [_pixels(image, number) for number, image in enumerate(images[first : first + size], start=first)]


def _pixels(image, number: int) -> np.ndarray:
    """[h, w, 3] uint8 of what a caller gave as image `number`. Raises InputError for what is no image."""
    if isinstance(image, str | os.PathLike):
        return read_image(os.fspath(image))
    if isinstance(image, Image.Image):
        try:
            image = as_rgb(image)  # Pillow reads what it opened only now
        except DECODING_ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"image {number} cannot be decoded ({reason})") from error
    if not isinstance(image, np.ndarray):
        raise InputError(f"image {number} is of type {type(image).__name__}; wanted a file name, a PIL image or an array")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InputError(f"image {number} is {image.dtype} {list(image.shape)}; wanted uint8 [height, width, 3]")
    return np.ascontiguousarray(image)


def _result(rows: DetectionRows, class_names: ClassNames, *, size: tuple[int, int]) -> ImageDetections:
    """Detections of one image of `size` (height, width)."""
    name_of = dict(zip(class_names.category_ids, class_names.names, strict=True))
    return ImageDetections(
        boxes=np.asarray(rows.boxes, np.float32)[:, [1, 0, 3, 2]], scores=np.asarray(rows.scores, np.float32),
        category_ids=np.asarray(rows.category_ids, np.int64), names=tuple(name_of[int(number)] for number in rows.category_ids),
        masks=None if rows.masks is None else np.array([decoded(mask) for mask in rows.masks], bool).reshape(-1, *size))
