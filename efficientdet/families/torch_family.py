"""Common parts of families with torchvision's ResNets that read weights of PyTorch."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from efficientdet.families.family import Arrays, Family
from efficientdet.families.hyperparameters import REMOVED_FROM_ALL, Hyperparameters, Removed
from efficientdet.families.published_files import BACKBONES

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule

YX_OF_XY = [1, 0, 3, 2]  # torch's offsets are (t_x, t_y, t_w, t_h), Keras layers here have (t_y, t_x, t_h, t_w)
_NORM_ROLES = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_KERNEL_AXES = {4: (2, 3, 1, 0), 2: (1, 0)}  # out, in, rows, columns -> rows, columns, in, out; out, in -> in, out


class TorchHyperparameters(Hyperparameters):
    """Base class of the hyperparameters of a `TorchFamily`."""

    REMOVED: ClassVar[dict[str, Removed]] = REMOVED_FROM_ALL | {
        key: Removed("no gain was measured in this family", published)
        for key, published in {
            "label_assignment": ("iou",),
            "class_loss_type": ("focal",),
            "box_loss_type": ("l1", "smooth_l1"),
            "box_loss_weight": (None,),
        }.items()
    }

    # Declared only: the class of a family defines valid values and defaults
    backbone_name: str
    resize: str
    longer_side: int


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

    def resize_rule(self, hparams: AnyTorchHyperparameters) -> "ResizeRule":
        """Return the rule of hparam resize; "fit" is torchvision's, which keeps the aspect ratio."""
        from dataset.input.resize import fit_within, letterbox, stretch

        if hparams.resize == "fit":
            return fit_within(min(hparams.input_size), max(hparams.longer_side, *hparams.input_size))
        return {"letterbox": letterbox, "stretch": stretch}[hparams.resize](hparams.input_size)

    def augmentation(self, hparams: AnyTorchHyperparameters) -> "Augmentation":
        """Return torchvision's augmentation: resize and random horizontal flip."""
        from dataset.input.augmentation import ResizeAndFlip

        return ResizeAndFlip(self.resize_rule(hparams), 0.5 if hparams.input_rand_hflip else 0.0)

    def is_backbone(self, name: str) -> bool:
        return name.startswith(self.body)


def is_torch(names: Iterable[str]) -> bool:
    """Return whether arrays with these names are a torch state dict."""
    return any(name.endswith((".weight", ".running_var")) for name in names)


def from_torch(
    arrays: Mapping[str, np.ndarray], names: Iterable[str], *, module: Callable[[str], str] = lambda name: name
) -> dict[str, np.ndarray]:
    """Return the arrays of a torch state dict by the given `names`.

    Unused arrays keep torch's names, for `check_against` to report. Layers are named as torch's modules, with slashes
    instead of dots: `backbone.body.conv1.weight` is `backbone/body/conv1/kernel`.

    module: maps the name of a torch module to the name that the layers here follow. Batch counters are left out.
    """
    theirs = {module(name): name for name in arrays if not name.endswith("num_batches_tracked")}
    translated = {}
    for name in names:
        layer, role = name.rsplit("/", 1)
        key = f"{layer.replace('/', '.')}.{'weight' if role == 'kernel' else _NORM_ROLES.get(role, role)}"
        if key in theirs:
            array = arrays[theirs.pop(key)]
            translated[name] = np.transpose(array, _KERNEL_AXES[array.ndim]) if role == "kernel" else array
    return {**translated, **{name: arrays[name] for name in theirs.values()}}


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
