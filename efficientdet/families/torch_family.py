"""Common parts of families with torchvision's ResNets that read weights of PyTorch."""

from collections.abc import Iterable
from typing import ClassVar, TypeVar

import numpy as np

from efficientdet.families.family import Arrays, Family
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.published_files import BACKBONES
from model.torch_weights import YX_OF_XY, from_torch, is_torch


class TorchHyperparameters(Hyperparameters):
    """Base class of the hyperparameters of a `TorchFamily`."""

    backbone_name: str  # declared only: the class of a family defines valid names and default


AnyTorchHyperparameters = TypeVar("AnyTorchHyperparameters", bound=TorchHyperparameters)


class TorchFamily(Family[AnyTorchHyperparameters]):
    """A family with a torchvision backbone."""

    body: ClassVar[str]  # prefix of the names of the ResNet's weights, such as "backbone/"

    def translated_name(self, name: str) -> str:
        """Translate the name of a PyTorch weight to the names of this project."""
        raise NotImplementedError

    def translated_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """Reorder the values of a weight, whose axes are in the order of Keras, to the layout of this project."""
        raise NotImplementedError

    def imagenet_backbone(self, hparams: AnyTorchHyperparameters) -> str:
        """Return torchvision's first published weights of the backbone."""
        return BACKBONES[hparams.backbone_name].file

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """Translate PyTorch weights; those of a classifier are the backbone's. All others have the names already."""
        if not is_torch(arrays):
            return super().named_arrays(arrays, names, averaged=averaged)
        translated = from_torch(arrays, names, module=self.translated_name)
        return {name: self.translated_layout(name, array) for name, array in translated.items()}

    def is_backbone(self, name: str) -> bool:
        return name.startswith(self.body)


def with_y_first(array: np.ndarray) -> np.ndarray:
    """Reorder offsets [..., boxes x 4] from x first, as in PyTorch, to y first."""
    return array.reshape(*array.shape[:-1], -1, 4)[..., YX_OF_XY].reshape(array.shape)


def pyramid_module(name: str) -> str:
    """Return the name in older versions of torchvision of a weight of its detectors or classifiers.

    The weights of a classifier get the names of a detector's backbone.
    """
    if name.startswith(("conv1.", "bn1.", "layer")):
        return f"backbone.body.{name}"
    head, separator, rest = name.partition("_blocks.")
    level, _, rest = rest.partition(".")
    return (
        f"{head}_blocks.{level}.{rest.removeprefix('0.')}" if separator and head.startswith("backbone.fpn.") else name
    )
