"""A data set at the input of a network: images and boxes after resizing, and the anchors that they match."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.anchor_fit import ENOUGH, best_overlaps, overlaps_in_training
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from object_detection.geometry.anchor_grid import AnchorGrid


@dataclass(frozen=True, kw_only=True, eq=False)
class InputView:
    """The images at the input for some hyperparameters; `chosen` are the objects used in training."""

    images: LabeledImages
    hparams: Hyperparameters

    def after(self, **settings) -> "InputView":
        """Return the view with some hyperparameters changed. Raises InputError for invalid values."""
        return replace(self, hparams=with_overrides(self.hparams, settings))

    @cached_property
    def size(self) -> tuple[int, int]:
        """Height and width of the network's input."""
        return tuple(self.hparams.family.resize_rule(self.hparams).size)

    @cached_property
    def scaled(self) -> np.ndarray:
        """Height and width of each image in the input, [n, 2] int32."""
        rule = self.hparams.family.resize_rule(self.hparams)
        different, which = np.unique(self.images.sizes, axis=0, return_inverse=True)
        return np.array([np.asarray(rule.scaled_size(size)) for size in different], np.int32).reshape(-1, 2)[
            which.ravel()
        ]

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
        return self.hparams.family.anchors(self.hparams) is not None

    @cached_property
    def anchors(self) -> AnchorGrid:
        """The anchors of the family, if it `has_anchors`."""
        return self.hparams.family.anchors(self.hparams)

    @cached_property
    def unmatched(self) -> np.ndarray:
        """Mask of the objects whose best anchor has too low an IoU at evaluation scale, [M] bool."""
        return self.unmatched_of(slice(None))

    def unmatched_of(self, numbers: np.ndarray | slice) -> np.ndarray:
        """Return `unmatched` for some objects."""
        return best_overlaps(self.boxes[numbers], self.anchors) < ENOUGH

    def unmatched_in_training(self, numbers: np.ndarray) -> np.ndarray:
        """Return the share of training scales at which each object has no matching anchor, [len(numbers)]."""
        augmentation = self.hparams.family.augmentation(self.hparams)
        scales = getattr(augmentation, "jitter_min", 1.0), getattr(augmentation, "jitter_max", 1.0)
        overlaps = overlaps_in_training(self.boxes[numbers], self.anchors, image_size=self.size, scales=scales)
        return np.mean(overlaps < ENOUGH, axis=0)
