"""What families have in common that are built on torchvision's ResNets and read weights of torch."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, Family
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.published_files import BACKBONES
from model.torch_weights import YX_OF_XY, from_torch, is_torch
from program_support.errors import InputError

if TYPE_CHECKING:
    from model.detector import Detector


class TorchFamily(Family):
    """See `Family`; its hyperparameters have a `backbone_name`."""

    body: ClassVar[str]  # what names of the ResNet's weights begin with, such as "backbone/"

    def build(self, hparams: Hyperparameters, *, num_classes: int, precision: str = "float32",
              backbone_weights: str | None = None) -> "Detector":
        """A detector with random weights; a backbone of torchvision's is loaded into it as any checkpoint is. Raises
        InputError for `backbone_weights`, which are none of those."""
        if backbone_weights:
            raise InputError(f"--backbone_init={backbone_weights}: is no file that {hparams.model_name} can start from; expected "
                             f"torchvision's {self.imagenet_backbone(hparams)}, a checkpoint of ours, or imagenet")
        return self.build_detector(hparams, num_classes=num_classes, precision=precision)

    def build_detector(self, hparams: Hyperparameters, *, num_classes: int, precision: str) -> "Detector":
        """With random weights."""
        raise NotImplementedError

    def our_module(self, name: str) -> str:
        """The name of a weight there -> that which our layers follow."""
        raise NotImplementedError

    def our_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """The array of one of our names, its axes in Keras's order -> with its values in our order."""
        raise NotImplementedError

    def imagenet_backbone(self, hparams: Hyperparameters) -> str:
        """torchvision's first weights of each."""
        return BACKBONES[hparams.backbone_name].file

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """torch's translated, those of a classifier as the backbone's; all others have our names."""
        if not is_torch(arrays):
            return super().named_arrays(arrays, names, averaged=averaged)
        translated = from_torch(arrays, names, module=self.our_module)
        return {name: self.our_layout(name, array) for name, array in translated.items()}

    def is_backbone(self, name: str) -> bool:
        """The ResNet's."""
        return name.startswith(self.body)


def with_y_first(array: np.ndarray) -> np.ndarray:
    """[..., boxes x 4] with torch's order of the offsets -> ours."""
    return array.reshape(*array.shape[:-1], -1, 4)[..., YX_OF_XY].reshape(array.shape)


def pyramid_module(name: str) -> str:
    """The name of a weight of torchvision's detectors, or of a classifier, which is their backbone -> as older torchvisions
    have it, and ours."""
    if name.startswith(("conv1.", "bn1.", "layer")):
        return f"backbone.body.{name}"
    head, found, rest = name.partition("_blocks.")
    level, _, rest = rest.partition(".")
    return f"{head}_blocks.{level}.{rest.removeprefix('0.')}" if found and head.startswith("backbone.fpn.") else name
