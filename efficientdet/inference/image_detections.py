"""Images of any kind and size, and their detections with names; free of Keras and TensorFlow."""

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from PIL import Image

from dataset.class_names import ClassNames
from dataset.files.image_files import encode_image, find_images, read_image, read_image_stream
from dataset.files.image_formats import DECODING_ERRORS
from dataset.files.pixel_values import FULL_RANGE, ValueRange, as_rgb
from efficientdet.inference.result_files import write_output
from efficientdet.reports.drawing import draw_detections, resized
from object_detection.coco.results import DetectionRows, results_json
from object_detection.coco.run_length_masks import decoded, run_lengths
from program_support.errors import InputError

if TYPE_CHECKING:
    import supervision

_MAX_SHOWN = 10  # objects listed in the text of a result
_PREVIEW_SIDE = 640  # pixels
_CHANNELS = ((), (1,), (3,), (4,))  # an array's last axis: gray, gray, RGB, RGBA
_FILE_KINDS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG"}
AnyImage = str | os.PathLike[str] | BinaryIO | Image.Image | np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ImageDetections:
    """Detections in one image: N objects, highest score first. Notebooks display the image with its boxes.

    Attributes:
        boxes: [N, 4] float32, x_min, y_min, x_max, y_max in pixels of the input image.
        scores: [N] float32, from 0 to 1.
        category_ids: [N] int64, ids of the data set, such as COCO's.
        names: N names of these categories.
        masks: [N, height, width] bool in pixels of the image; None for detectors without masks.
        track_ids: [N] int64, identities from 1 that stay the same from frame to frame; None except from `track`.
        image: the input of `predict`; a file is read again if its pixels are needed.
        class_names: all classes of the detector, for the colors. None: the detected classes.
        value_range: see `Detector`; for files that are read again.
    """

    boxes: np.ndarray
    scores: np.ndarray
    category_ids: np.ndarray
    names: tuple[str, ...]
    masks: np.ndarray | None = None
    track_ids: np.ndarray | None = None
    image: AnyImage | None = None
    class_names: ClassNames | None = None
    value_range: ValueRange = FULL_RANGE

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        ids = [""] * len(self) if self.track_ids is None else [f" #{number}" for number in self.track_ids]
        lines = [
            f"\n  {name}{number} {score:.2f} at {' '.join(f'{side:.1f}' for side in box)}"
            for name, number, score, box in zip(self.names, ids, self.scores, self.boxes, strict=True)
        ]
        more = [f"\n  and {len(self) - _MAX_SHOWN} more"] if len(self) > _MAX_SHOWN else []
        return "".join([f"ImageDetections: {len(self)} object{'s' * (len(self) != 1)}", *lines[:_MAX_SHOWN], *more])

    def draw(self, image: AnyImage | None = None) -> Image.Image:
        """Return a copy of the image with boxes, class names, scores and masks.

        Args:
            image: the input image, if the result does not hold it.

        Raises:
            InputError: there is no image, or it cannot be read.
        """
        ids = self.class_names.category_ids if self.class_names else sorted({*self.category_ids.tolist()})
        names = dict(zip(self.category_ids.tolist(), self.names, strict=True))
        return Image.fromarray(
            draw_detections(
                self._image_pixels(image),
                self.boxes[:, [1, 0, 3, 2]],
                classes=np.searchsorted(ids, self.category_ids),
                names=[names.get(number, "") for number in ids],
                scores=self.scores,
                masks=None if self.masks is None else list(self.masks),
                track_ids=self.track_ids,
            )
        )

    def save(self, path: str | os.PathLike[str], image: AnyImage | None = None) -> Path:
        """Write the image that `draw` returns as a JPEG or PNG file, creating its folder; return the path.

        Raises:
            InputError: the path ends with neither .jpg, .jpeg nor .png, the file cannot be written, or there is no
                image.
        """
        path = Path(path)
        if path.suffix.lower() not in _FILE_KINDS:
            raise InputError(f"{path}: expected a name that ends with {', '.join(_FILE_KINDS)}")
        write_output(path, encode_image(np.asarray(self.draw(image)), _FILE_KINDS[path.suffix.lower()], quality=92))
        return path

    def crop(self, image: AnyImage | None = None) -> list[Image.Image]:
        """Return a crop of each object, in the order of the boxes: all pixels that its box touches."""
        pixels = self._image_pixels(image)
        parts = [_cropped(pixels, box) for box in self.boxes[:, [1, 0, 3, 2]]]
        return [Image.fromarray(part) if part.size else Image.new("RGB", (0, 0)) for part in parts]

    def to_coco(self, image_id: int = 0) -> list[dict]:
        """Return COCO results: image_id, category_id, bbox [x, y, width, height], score.

        Each also has a segmentation if there are masks, and a track_id if the objects are tracked.
        """
        masks = None if self.masks is None else [run_lengths(mask) for mask in self.masks]
        rows = DetectionRows.of_image(
            self.boxes[:, [1, 0, 3, 2]], self.scores, self.category_ids, masks=masks, image_id=image_id
        )
        return results_json(rows._replace(track_ids=self.track_ids))

    def to_supervision(self) -> "supervision.Detections":
        """Return `supervision.Detections` with category ids as class_id and names as data["class_name"].

        Raises:
            InputError: the package supervision is not installed.
        """
        try:
            import supervision
        except ImportError as error:
            raise InputError("to_supervision() needs the package supervision: pip install supervision") from error
        return supervision.Detections(
            xyxy=self.boxes,
            confidence=self.scores,
            class_id=self.category_ids,
            mask=self.masks,
            tracker_id=self.track_ids,
            data={"class_name": np.array(self.names, str)},
        )

    def _image_pixels(self, image: AnyImage | None) -> np.ndarray:
        image = self.image if image is None else image
        if image is None:
            raise InputError("the detections hold no image; pass it as image=")
        return pixels_of(image, 0, self.value_range)

    def _repr_png_(self) -> bytes | None:
        """Return the preview of a notebook, None without an image."""
        if self.image is None:
            return None
        drawn = np.asarray(self.draw())
        smaller = resized(drawn, longer_side=_PREVIEW_SIDE) if max(drawn.shape) > _PREVIEW_SIDE else drawn
        return encode_image(smaller, "PNG")


def _cropped(pixels: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return every pixel of an image [h, w, 3] that a box [4] yxyx touches; none if it lies outside."""
    (top, left), (bottom, right) = (
        np.clip(corner, 0, pixels.shape[:2]).astype(int) for corner in (np.floor(box[:2]), np.ceil(box[2:]))
    )
    return np.ascontiguousarray(pixels[top:bottom, left:right])


def batches_of(
    images: AnyImage | Sequence[AnyImage], size: int, *, value_range: ValueRange
) -> Iterator[tuple[Sequence[AnyImage], list[np.ndarray]]]:
    """Yield up to `size` images at a time and their pixels, read on demand. See `Detector.predict`."""
    files = [image for one in _as_list(images) for image in _files_of(one)]
    for first in range(0, len(files), size):
        batch = files[first : first + size]
        yield batch, [pixels_of(image, number, value_range) for number, image in enumerate(batch, start=first)]


def _as_list(images: AnyImage | Sequence[AnyImage]) -> list[AnyImage]:
    """Return the images of a list, a tuple or an array of rank 4; any other input is a single image."""
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | bytes | os.PathLike | Image.Image) or _is_stream(images):
        return [cast(AnyImage, images)]
    return list(cast(Sequence[AnyImage], images)) if isinstance(images, Iterable) else [images]


def _is_stream(image) -> bool:
    return hasattr(image, "read") and not isinstance(image, os.PathLike)


def _files_of(image: AnyImage) -> Sequence[AnyImage]:
    """Return the files that a folder or pattern names; any other input is a single image."""
    if not isinstance(image, str | os.PathLike):
        return [image]
    name = os.fspath(image)
    if not os.path.isdir(name) and (os.path.exists(name) or not glob.has_magic(name)):
        return [image]
    try:
        return find_images([name])
    except InputError as error:
        raise InputError(str(error).removeprefix("--image_path=")) from error


def pixels_of(image, number: int, value_range: ValueRange) -> np.ndarray:
    """Return image `number` of the input as [h, w, 3] uint8.

    Raises:
        InputError: for other inputs.
    """
    if isinstance(image, str | os.PathLike):
        return read_image(os.fspath(image), value_range=value_range)
    if isinstance(image, Image.Image):
        try:
            image = as_rgb(image, value_range)  # Pillow decodes an opened file here
        except DECODING_ERRORS as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"image {number} cannot be decoded ({reason})") from error
    if _is_stream(image):
        return _pixels_of_stream(image, number, value_range)
    if not isinstance(image, np.ndarray):
        raise InputError(
            f"image {number} is of type {type(image).__name__}; expected a file name, a file object, a PIL image or an "
            "array"
        )
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in _CHANNELS or not image.size:
        raise InputError(
            f"image {number} is {image.dtype} {list(image.shape)}; expected uint8 [height, width, 3] (RGB), "
            "[height, width, 4] or [height, width]"
        )
    colors = image[..., :3] if image.shape[2:] in ((3,), (4,)) else np.repeat(image.reshape(*image.shape[:2], 1), 3, 2)
    return np.ascontiguousarray(colors)


def _pixels_of_stream(stream: BinaryIO, number: int, value_range: ValueRange) -> np.ndarray:
    name = f"image {number}"
    try:
        return read_image_stream(stream, name, value_range=value_range).upright()
    except InputError:
        raise
    except (OSError, ValueError, TypeError) as error:  # a closed file, or one of text
        raise InputError(f"{name} cannot be read ({' '.join(str(error).split())}); expected a binary file") from error


def image_detections(
    rows: DetectionRows, class_names: ClassNames, *, image: AnyImage, pixels: np.ndarray, value_range: ValueRange
) -> ImageDetections:
    """Return the detections of one image with these pixels."""
    name_of = class_names.by_id()
    masks = None
    if rows.masks is not None:
        masks = np.array([decoded(mask) for mask in rows.masks], bool).reshape(-1, *pixels.shape[:2])
    return ImageDetections(
        image=pixels if _is_stream(image) else image,  # a stream cannot be read again
        class_names=class_names,
        value_range=value_range,
        boxes=np.asarray(rows.boxes, np.float32)[:, [1, 0, 3, 2]],
        scores=np.asarray(rows.scores, np.float32),
        category_ids=np.asarray(rows.category_ids, np.int64),
        names=tuple(name_of[int(number)] for number in rows.category_ids),
        masks=masks,
        track_ids=rows.track_ids,
    )
