"""Interface of a detector family. Imports neither Keras nor TensorFlow before a detector is built."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.preset_values import QuickstartRecipe
from model.weight_arrays import model_arrays

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.detection_model import DetectionModel
    from object_detection.geometry.anchor_grid import AnchorGrid

Arrays = Mapping[str, np.ndarray]
Shapes = Mapping[str, tuple[int, ...]]
AnyHyperparameters = TypeVar("AnyHyperparameters", bound=Hyperparameters)


class ClassLayout(NamedTuple):
    """Layout of the last axis of a weight with values of each class: (before, background + classes, after)."""

    before: int = 1
    background: int = 0
    after: int = 1

    def rows(self, array: np.ndarray, rows: Sequence[int | None], *, default: np.ndarray | None = None) -> np.ndarray:
        """Return the values of the background and of these classes, in this order.

        `default` has the result's shape and is used for classes whose row is None.
        """
        values, defaults = self._by_class(array), self._by_class(array if default is None else default)
        chosen = [values[..., : self.background, :]]
        for number, row in enumerate(rows):
            source, at = (defaults, number) if row is None else (values, row)
            chosen.append(source[..., self.background + at, None, :])
        return np.concatenate(chosen, axis=-2).reshape(*array.shape[:-1], -1)

    def count(self, array: np.ndarray) -> int:
        """Return the number of classes; a negative one if the array has another layout."""
        classes, rest = divmod(array.shape[-1], self.before * self.after)
        return -1 if rest else classes - self.background

    def _by_class(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(*array.shape[:-1], self.before, -1, self.after)


class Family(Generic[AnyHyperparameters]):
    """A family of detectors: its models, hyperparameters, construction and published weights.

    The module `family` in a folder of efficientdet/families defines one as FAMILY; another package provides one by an
    entry point of the group `efficientdet.families`.
    """

    name: ClassVar[str]
    hyperparameters: ClassVar[type[Hyperparameters]]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # model name -> its hyperparameters
    quickstart: ClassVar[QuickstartRecipe | None] = None  # None: quickstart.py does not support the models
    # The conventions of a model are the hyperparameters with which its weights have their meaning, such as anchors, box
    # coding and normalization. They come with the weights: with other values the same weights detect something else.
    conventions: ClassVar[tuple[str, ...]] = ()
    backbone_conventions: ClassVar[tuple[str, ...]] = ()  # the conventions that concern the backbone
    adaptable_conventions: ClassVar[tuple[str, ...]] = ()  # the conventions that fine-tuning may change
    # Number of classes of a checkpoint without class names -> row of COCO's category id 1; the next ids follow.
    coco_class_rows: ClassVar[Mapping[int, int]] = {}
    # Entries of MLPerf's log. "benchmark": the id in the rules. "values": names of hyperparameters by the rules' names.
    # "logs_weights": whether the initialized weights are listed.
    mlperf: ClassVar[Mapping[str, Any]] = {}

    def build(self, hparams: AnyHyperparameters, *, num_classes: int, precision: str = "float32") -> "DetectionModel":
        """Build a detector with random weights. Imports Keras."""
        raise NotImplementedError

    def resize_rule(self, hparams: AnyHyperparameters) -> "ResizeRule":
        """Return the rule by which images are resized to the network's input."""
        from dataset.input.resize import letterbox

        return letterbox(hparams.input_size)

    def anchors(self, hparams: AnyHyperparameters) -> "AnchorGrid | None":
        """Return the anchors without building the network; None if the family does not provide them."""
        return None

    def augmentation(self, hparams: AnyHyperparameters) -> "Augmentation":
        """Return the augmentation of training images."""
        from dataset.input.augmentation import ScaleJitterCrop

        return ScaleJitterCrop(
            hparams.input_size, hparams.jitter_min, hparams.jitter_max, 0.5 if hparams.input_rand_hflip else 0.0
        )

    def activations_per_pixel(self, hparams: AnyHyperparameters) -> float:
        """Return the number of activations per input pixel, from which the memory is estimated."""
        return 600.0  # approximately EfficientDet-D0 and ResNet-50

    def imagenet_backbone(self, hparams: AnyHyperparameters) -> str | None:
        """Return the name of the published weights for --backbone_init=imagenet; None: there are none."""
        return None

    def imported_conventions(self, arrays: Arrays, *, stated: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return hyperparameters of a third-party checkpoint, inferred from its arrays.

        Args:
            arrays: named as in the file.
            stated: the architecture that a file beside it names, or the end of its path.
            given: hyperparameters that the user has set.
        """
        return {}

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """Return a checkpoint's averaged or raw weights by `names`, which are in the order of the layers."""
        return model_arrays(arrays, averaged=averaged)

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight depends on the classes and is reinitialized if they differ."""
        return False

    def is_backbone(self, name: str) -> bool:
        """Return whether a weight belongs to the backbone."""
        return False

    def count_classes(self, arrays: Arrays, shapes: Shapes) -> int | None:
        """Return the number of classes of a checkpoint; None if unknown. `shapes`: shapes of the network's weights."""
        return None

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of a weight with values of each class; None for all other weights."""
        return None

    def with_class_rows(
        self, arrays: Arrays, rows: Sequence[int | None], shapes: Shapes, *, defaults: Arrays | None = None
    ) -> dict[str, np.ndarray]:
        """Select the values of these classes, in this order, in the weights that depend on the classes.

        A class whose row is None has the values in `defaults`. A weight without one of the rows remains as it is.
        """
        chosen = dict(arrays)
        last = max((row for row in rows if row is not None), default=-1)
        for name, array in arrays.items():
            layout = self.class_layout(name, shapes)
            if layout is not None and last < layout.count(array):
                chosen[name] = layout.rows(array, rows, default=defaults[name] if defaults else None)
        return chosen
