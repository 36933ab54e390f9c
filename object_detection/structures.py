"""Tensors that are passed between the packages.

B images, H, W input pixels, A anchors of all levels, K classes, M object slots, D detection slots. Boxes are float32
(y_min, x_min, y_max, x_max) in continuous pixels of their image; classes are 0 .. K-1; masks mark the valid entries.
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np


class Tensor(Protocol):
    """Tensor of any backend, eager, traced or symbolic; a NumPy array is one too.

    It has the attributes and operators that TensorFlow, JAX and Keras share. Functions are those of `keras.ops`.
    """

    @property
    def shape(self) -> tuple[Any, ...]: ...  # int, or None where it is known only when the program runs
    @property
    def dtype(self) -> Any: ...  # the backend's own type
    def __getitem__(self, key: Any, /) -> "Tensor": ...
    def __float__(self) -> float: ...  # a scalar's, copied to the host
    def __int__(self) -> int: ...
    def __neg__(self) -> "Tensor": ...
    def __add__(self, other: Any, /) -> "Tensor": ...
    def __radd__(self, other: Any, /) -> "Tensor": ...
    def __sub__(self, other: Any, /) -> "Tensor": ...
    def __rsub__(self, other: Any, /) -> "Tensor": ...
    def __mul__(self, other: Any, /) -> "Tensor": ...
    def __rmul__(self, other: Any, /) -> "Tensor": ...
    def __truediv__(self, other: Any, /) -> "Tensor": ...
    def __rtruediv__(self, other: Any, /) -> "Tensor": ...
    def __floordiv__(self, other: Any, /) -> "Tensor": ...
    def __mod__(self, other: Any, /) -> "Tensor": ...
    def __lt__(self, other: Any, /) -> "Tensor": ...
    def __le__(self, other: Any, /) -> "Tensor": ...
    def __gt__(self, other: Any, /) -> "Tensor": ...
    def __ge__(self, other: Any, /) -> "Tensor": ...
    def __eq__(self, other: Any, /) -> "Tensor": ...  # type: ignore[override]  # compares each entry, unlike an object
    def __ne__(self, other: Any, /) -> "Tensor": ...  # type: ignore[override]


Array = TypeVar("Array")  # the arrays of a structure: Tensor in a program, np.ndarray on the host


class Objects(NamedTuple, Generic[Array]):
    """Ground truth of a batch, padded to M objects per image; S is the side of masks, 0 without masks."""

    boxes: Array  # [B, M, 4] float32, yxyx pixels of the network input
    classes: Array  # [B, M] int32, 0 .. K-1
    valid: Array  # [B, M] bool, False for padding
    crowd: Array  # [B, M] bool, a region of many objects: never assigned to an anchor
    difficult: Array  # [B, M] bool, VOC's flag: used in training like any other, ignored in evaluation
    masks: Array  # [B, M, S, S] uint8, 1 where the center of a cell of the box belongs to the object

    @classmethod
    def of_boxes(cls, boxes: Tensor, classes: Tensor, valid: Tensor, crowd: Tensor) -> "Objects[Tensor]":
        """Return objects without masks, none of them difficult; for arrays with a known shape."""
        return Objects(
            boxes, classes, valid, crowd, np.zeros(crowd.shape, bool), np.zeros((*crowd.shape, 0, 0), np.uint8)
        )


class Batch(NamedTuple, Generic[Array]):
    """Input of a training step or an evaluation: B images of one size with their objects."""

    images: Array  # [B, H, W, 3] uint8
    sizes: Array  # [B, 2] int32, height and width of the valid area; the rest is padding
    objects: Objects[Array]
    image_ids: Array  # [B] int64
    positions: Array  # [B] int64, position in the endless training stream, or among the records of an evaluation
    scales: Array  # [B, 2] float32, original pixels per input pixel, y and x


class Targets(NamedTuple):
    """Training target of each anchor."""

    classes: Tensor  # [B, A] int32, 0 .. K-1; 0 where not positive
    box_deltas: Tensor  # [B, A, 4] float32 (t_y, t_x, t_h, t_w); 0 where not positive
    positive: Tensor  # [B, A] bool
    ignored: Tensor  # [B, A] bool, excluded from all losses


class ScoredTargets(NamedTuple):
    """`Targets`, and a score for each positive anchor: the target of a class loss and the weight of the box loss."""

    classes: Tensor
    box_deltas: Tensor
    positive: Tensor
    ignored: Tensor
    scores: Tensor  # [B, A] float32, 0 .. 1; 0 where not positive


class PartialTargets(NamedTuple):
    """Targets in images that are not labeled for all classes."""

    assigned: Targets | ScoredTargets
    unlabeled: Tensor  # [B, A, K] bool, excluded from the class loss

    @property
    def positive(self) -> Tensor:
        """Positive anchors, [B, A] bool."""
        return self.assigned.positive


DETECTIONS = ("boxes", "scores", "classes")  # outputs of an exported detector, which may also have masks


class Detections(NamedTuple, Generic[Array]):
    """Detections, best first, padded to D per image; S is the side of masks."""

    boxes: Array  # [B, D, 4] float32, yxyx
    scores: Array  # [B, D] float32, 0 where not valid
    classes: Array  # [B, D] int32, 0 .. K-1
    valid: Array  # [B, D] bool
    masks: Array | None = None  # [B, D, S, S] float32, probabilities in the cells of the box clipped to the image


def stacked(images: Sequence[Detections[np.ndarray]]) -> Detections[np.ndarray]:
    """Return Detections of B images, given as arrays without B, as those of one batch."""
    return Detections._make(None if values[0] is None else np.stack(values) for values in zip(*images, strict=True))
