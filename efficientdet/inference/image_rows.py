"""Detection in batches of network inputs and in images of any size, independent of the runtime of the network.

Imports neither Keras nor TensorFlow.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import pasted_run_lengths
from object_detection.structures import Detections, Tensor

if TYPE_CHECKING:
    from dataset.input.host_resize import HostResize
    from dataset.input.resize import ResizeRule

# Returns the detections of each image [h, w, 3] uint8, highest score first
Detect = Callable[[list[np.ndarray]], list[DetectionRows]]

_SMALLEST_SIDE = 0.01  # pixels


class LoadedModel(NamedTuple):
    """A stored model, ready to detect."""

    detect: Detect
    class_names: ClassNames
    thresholds: ScoreThresholds

    @classmethod
    def from_description(cls, detect: Detect, description: Description) -> "LoadedModel":
        """Return a model with the names and thresholds of its description."""
        return cls(detect, ClassNames.from_categories(description.categories), ScoreThresholds.stored_in(description))


class BatchDetector:
    """Detection in batches of the network's input size; subclasses define the runtime and the weights."""

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """Return boxes in pixels of the network input; arrays or tensors.

        images: uint8 [B, H, W, 3]; sizes: int32 [B, 2], height and width of the valid area.
        """
        raise NotImplementedError

    def __call__(self, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
        """Return arrays, boxes in pixels of the original images and clipped to them. scales: see `Batch`."""
        found = fetched(self.detect(images, sizes))
        limits = np.tile(np.asarray(sizes, np.float32), 2)[:, None]
        return found._replace(boxes=np.clip(found.boxes, 0, limits) * np.tile(np.asarray(scales), 2)[:, None])


def fetched(found: Detections) -> Detections:
    """Return the same detections as arrays on the host."""
    return Detections(*(None if values is None else np.asarray(values) for values in found))


class ResizingDetector:
    """Detection in images of any size, which `resize` converts to network inputs."""

    def __init__(
        self,
        predict: BatchDetector,
        *,
        resize: "ResizeRule | HostResize",
        description: Description,
        batch_size: int = 1,
    ):
        """Wrap a detector; batch_size: the size to which batches are padded, for compiled networks."""
        self._predict, self._resize, self._description, self._batch_size = predict, resize, description, batch_size
        self._category_ids = np.array(ClassNames.from_categories(description.categories).category_ids, np.int64)

    def __call__(self, images: list[np.ndarray]) -> list[DetectionRows]:
        """Detect in images [h, w, 3] uint8, all in one batch."""
        inputs = [[np.asarray(part) for part in self._resize(image)] for image in images]
        inputs += [inputs[-1]] * (self._batch_size - len(inputs))
        found = self._predict(*map(np.stack, zip(*inputs, strict=True)))
        return [self._rows(found, number, image) for number, image in enumerate(images)]

    def _rows(self, found: Detections, number: int, image: np.ndarray) -> DetectionRows:
        valid = found.valid[number]
        return rows_of_image(
            found.boxes[number][valid],
            found.scores[number][valid],
            self._category_ids[found.classes[number][valid]],
            image=image,
            masks=None if found.masks is None else found.masks[number][valid],
            description=self._description,
        )


def rows_of_signature(
    outputs: Mapping[str, np.ndarray], image: np.ndarray, *, description: Description
) -> DetectionRows:
    """Return the outputs of a SavedModel for one image as rows; `masks` [D, S, S] are optional."""
    count = int(outputs["count"])
    masks = outputs["masks"][:count] if "masks" in outputs else None
    return rows_of_image(
        *(outputs[name][:count] for name in ("boxes", "scores", "classes")),
        image=image,
        masks=masks,
        description=description,
    )


def rows_of_image(
    boxes: np.ndarray,
    scores: np.ndarray,
    category_ids: np.ndarray,
    *,
    image: np.ndarray,
    masks: np.ndarray | None,
    description: Description,
) -> DetectionRows:
    """Return rows of an image [h, w, 3]; masks [N, S, S] within the boxes are pasted as the description specifies.

    Boxes of less than 0.01 pixels, as LiteRT's operator and files of earlier versions return, are dropped, because
    result files have two decimals; so are NaN and infinite boxes, which JSON cannot represent.
    """
    kept = np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] - boxes[:, :2] >= _SMALLEST_SIDE).all(axis=1)
    boxes, pasted = boxes[kept], None
    if masks is not None:  # files of older versions do not store the rule
        pasted = pasted_run_lengths(
            masks[kept],
            boxes,
            size=image.shape[:2],
            in_whole_pixels=description.hparams.get("masks_in_whole_pixels", False),
        )
    return DetectionRows.of_image(boxes, scores[kept], category_ids[kept], masks=pasted)
