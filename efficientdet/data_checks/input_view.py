"""A data set at the input of a network: images and boxes after resizing, and the anchors that they match."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dataset.input.tiling import Tiling, seen_in_tiles
from dataset.records.labeled_records import LabeledImages
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from object_detection.geometry.anchor_grid import AnchorGrid

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

_ENOUGH = 0.5  # IoU from which an anchor counts as a match
_VIEWS = 7  # training scales that are evaluated
_AT_ONCE = 20_000  # objects per chunk, to limit memory


@dataclass(frozen=True, kw_only=True, eq=False)
class InputView:
    """The images at the input for some hyperparameters; `chosen` are the objects used in training."""

    images: LabeledImages
    hparams: Hyperparameters

    @classmethod
    def of(cls, images: LabeledImages, hparams: Hyperparameters) -> "InputView":
        """Return the view of the images, or of their tiles."""
        tiling = Tiling.of_hyperparameters(vars(hparams))
        return cls(images=images if tiling is None else seen_in_tiles(images, tiling), hparams=hparams)

    def sample(self, most: int) -> "InputView":
        """Return the view of an evenly spaced sample of the objects used in training, each in a nameless image."""
        chosen = np.flatnonzero(self.chosen)
        numbers = chosen[evenly_spaced(len(chosen), most=most)]
        images, owners = self.images, np.arange(len(numbers), dtype=np.int32)
        kept = {name: getattr(images, name)[numbers] for name in ("boxes", "classes", "crowd", "difficult")}
        sizes = images.sizes[images.owners[numbers]]
        return replace(self, images=replace(images, names=(), digests=(), sizes=sizes, owners=owners, **kept))

    def after(self, **settings) -> "InputView":
        """Return the view with some hyperparameters changed.

        Raises:
            InputError: for invalid values.
        """
        view = replace(self, hparams=with_overrides(self.hparams, settings))
        if view.resize_rule == self.resize_rule:
            view.__dict__["scaled"] = self.scaled  # computed by TensorFlow, most of the time of a search
        return view

    @cached_property
    def resize_rule(self) -> "ResizeRule":
        """The rule by which images are resized to the input."""
        return self.hparams.family.resize_rule(self.hparams)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        height, width = self.resize_rule.size
        return height, width

    @cached_property
    def scaled(self) -> np.ndarray:
        """Height and width of each image in the input, [n, 2] int32."""
        different, which = np.unique(self.images.sizes, axis=0, return_inverse=True)
        return np.array([np.asarray(self.resize_rule.scaled_size(size)) for size in different], np.int32).reshape(
            -1, 2
        )[which.ravel()]

    @cached_property
    def scale(self) -> float:
        """Median input pixels per image pixel."""
        return float(np.median(self.scaled / np.maximum(self.images.sizes, 1)))

    @cached_property
    def padding(self) -> float:
        """The share of padding in all inputs."""
        return 1.0 - float(np.mean(self.scaled.astype(np.int64).prod(axis=1))) / float(np.prod(self.size))

    @cached_property
    def chosen(self) -> np.ndarray:
        """Mask of the objects used in training, [N] bool."""
        return np.ones(len(self.images.boxes), bool) if self.hparams.train_on_crowds else ~self.images.crowd

    @cached_property
    def classes(self) -> np.ndarray:
        """Classes of the objects used in training, [M]."""
        return self.images.classes[self.chosen]

    @cached_property
    def boxes(self) -> np.ndarray:
        """Boxes of the objects used in training, [M, 4] pixels of the input."""
        ratios = (self.scaled / np.maximum(self.images.sizes, 1)).astype(np.float32)[self.images.owners[self.chosen]]
        return self.images.boxes[self.chosen] * np.tile(ratios, 2)

    @cached_property
    def sides(self) -> np.ndarray:
        """The square root of each box's area, [M] pixels of the input."""
        return np.sqrt((self.boxes[:, 2:] - self.boxes[:, :2]).prod(axis=1))

    @cached_property
    def has_anchors(self) -> bool:
        """Return whether the family provides its anchors."""
        return self.anchors is not None

    @cached_property
    def anchors(self) -> AnchorGrid:
        """The anchors of the family, if it `has_anchors`."""
        return self.hparams.family.anchors(self.hparams)

    @cached_property
    def unmatched(self) -> np.ndarray:
        """Mask of the objects whose best anchor has too low an IoU at evaluation scale, [M] bool."""
        return best_overlaps(self.boxes, self.anchors) < _ENOUGH

    @cached_property
    def unmatched_in_training(self) -> np.ndarray:
        """The share of training scales at which each object has no matching anchor, [M]."""
        augmentation = self.hparams.family.augmentation(self.hparams)
        scales = getattr(augmentation, "jitter_min", 1.0), getattr(augmentation, "jitter_max", 1.0)
        overlaps = _overlaps_in_training(self.boxes, self.anchors, image_size=self.size, scales=scales)
        return np.mean(overlaps < _ENOUGH, axis=0)


def evenly_spaced(count: int, *, most: int) -> np.ndarray:
    """Return at most `most` of the numbers below `count`, evenly spaced and ascending."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(most, count)).astype(int))


def best_overlaps(boxes: np.ndarray, grid: AnchorGrid) -> np.ndarray:
    """Return the largest IoU of each box [N, 4] (yxyx, pixels of the input) with any anchor, [N] float32.

    On a grid it is reached by the anchor of the nearest row and column, because the overlap decreases with the
    distance.
    """
    chunks = (boxes[begin : begin + _AT_ONCE] for begin in range(0, len(boxes), _AT_ONCE))
    return np.concatenate([np.zeros(0, np.float32), *(_best_overlaps(chunk, grid) for chunk in chunks)])


def _best_overlaps(boxes: np.ndarray, grid: AnchorGrid) -> np.ndarray:
    boxes = np.asarray(boxes, np.float32)
    sides, centers = boxes[:, 2:] - boxes[:, :2], (boxes[:, :2] + boxes[:, 2:]) / 2
    common = _common_length(sides, centers, grid, axis=0) * _common_length(sides, centers, grid, axis=1)  # [G, N]
    areas = sides.prod(axis=1) + grid.sides.prod(axis=0)[:, None]
    return (common / np.maximum(areas - common, 1e-9)).max(axis=0)


def _common_length(sides: np.ndarray, centers: np.ndarray, grid: AnchorGrid, *, axis: int) -> np.ndarray:
    """Return the length that each box shares with the nearest anchor of each lattice along an axis, [G, N]."""
    first, stride, anchor, count = (
        values[axis][:, None] for values in (grid.centers, grid.strides, grid.sides, grid.counts)
    )
    side, position = sides[:, axis], (centers[:, axis] - first) / stride
    distance = stride * np.abs(position - np.clip(np.round(position), 0, count - 1))
    return np.clip(np.minimum((side + anchor) / 2 - distance, np.minimum(side, anchor)), 0, None)


def _overlaps_in_training(
    boxes: np.ndarray, grid: AnchorGrid, *, image_size: tuple[int, int], scales: tuple[float, float]
) -> np.ndarray:
    """Return the largest IoU of each box at the scales (lowest, highest) of scale jitter: [views, N].

    Boxes that a crop moves outside the input are moved back inside; truncation by the crop is ignored.
    """
    least, most = scales
    if least == most == 1.0:
        return best_overlaps(boxes, grid)[None]
    views = []
    for scale in least + (most - least) * (np.arange(_VIEWS) + 0.5) / _VIEWS:
        centers = (boxes[:, :2] + boxes[:, 2:]) / 2 * scale % np.array(image_size, np.float32)
        half_sides = (boxes[:, 2:] - boxes[:, :2]) / 2 * scale
        views.append(best_overlaps(np.concatenate([centers - half_sides, centers + half_sides], axis=1), grid))
    return np.stack(views)
