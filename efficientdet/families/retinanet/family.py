"""RetinaNet (Lin et al. 2017) on ResNets, as MLPerf trains it on Open Images; torchvision's weights of COCO are read too."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, Family
from efficientdet.families.retinanet import mlperf
from efficientdet.families.retinanet.hyperparameters import RetinaNetHyperparameters
from efficientdet.families.retinanet.presets import NUMBERS_PER_PIXEL, PRESETS
from efficientdet.families.torch_backbones import IMAGENET_FILES, refuse_other_backbones
from model.torch_weights import YX_OF_XY, from_torch, is_torch

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.dense_detector import DenseDetector

BODY = "backbone/body/"
_CLASS_PREDICTOR = "head/classification_head/cls_logits/"
_BOX_PREDICTOR = "head/regression_head/bbox_reg/"
_ANCHORS = 9  # of a cell
# What torchvision's loader makes of the COCO weights that it publishes: no epsilon; the aspect is kept.
TORCHVISION_CONVENTIONS = {"batch_norm_epsilon": 0.0, "resize": "fit"}


class RetinaNetFamily(Family):
    """See `Family`."""

    name = "retinanet"
    hyperparameters = RetinaNetHyperparameters
    presets = PRESETS
    conventions = ("batch_norm_epsilon", "resize", "longer_side", "anchor_scale")
    backbone_conventions = ("batch_norm_epsilon",)

    coco_class_rows: ClassVar = {91: 1}  # torchvision's rows are category ids

    def build(self, hparams: RetinaNetHyperparameters, *, num_classes: int, precision: str = "float32",
              backbone_weights: str | None = None) -> "DenseDetector":
        """A detector with random weights; a backbone of torchvision's is loaded into it as any checkpoint is."""
        from efficientdet.families.retinanet.build import build_detector

        refuse_other_backbones(backbone_weights, model_name=hparams.model_name, file=self.imagenet_backbone(hparams))
        return build_detector(hparams, num_classes=num_classes, precision=precision)

    def imagenet_backbone(self, hparams: RetinaNetHyperparameters) -> str:
        """torchvision's first weights of each, which MLPerf starts from."""
        return IMAGENET_FILES[hparams.backbone_name]

    def resize_rule(self, hparams: RetinaNetHyperparameters) -> "ResizeRule":
        """See `build.resize_rule`."""
        from efficientdet.families.retinanet.build import resize_rule

        return resize_rule(hparams)

    def augmentation(self, hparams: RetinaNetHyperparameters) -> "Augmentation":
        """A flip and nothing else."""
        from dataset.input.augmentation import ResizeAndFlip

        return ResizeAndFlip(self.resize_rule(hparams), 0.5 if hparams.input_rand_hflip else 0.0)

    def numbers_per_pixel(self, hparams: RetinaNetHyperparameters) -> float:
        """Of the published network, whatever is changed in it."""
        return NUMBERS_PER_PIXEL[hparams.backbone_name]

    def mlperf_benchmark(self, ruleset: str | None) -> str:
        """See `mlperf.benchmark`."""
        return mlperf.benchmark(ruleset)

    def mlperf_tensors(self, names: Iterable[str]) -> list[str]:
        """See `mlperf.tensors`."""
        return mlperf.tensors(names)

    def imported_conventions(self, arrays: Arrays) -> dict[str, Any]:
        """torchvision's are told from MLPerf's by their number of classes."""
        bias = arrays.get("head.classification_head.cls_logits.bias")
        return dict(TORCHVISION_CONVENTIONS) if bias is not None and len(bias) == 91 * _ANCHORS else {}

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """torch's translated, those of a classifier as the backbone's; all others have our names."""
        if not is_torch(arrays):
            return super().named_arrays(arrays, names, averaged=averaged)
        translated = from_torch(arrays, names, module=_our_module)
        return {name: _with_y_first(array) if name.startswith(_BOX_PREDICTOR) else array for name, array in translated.items()}

    def is_class_predictor(self, name: str) -> bool:
        """The last convolution of the classification head."""
        return name.startswith(_CLASS_PREDICTOR)

    def is_backbone(self, name: str) -> bool:
        """The ResNet's."""
        return name.startswith(BODY)

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """From the bias of the class predictor."""
        bias = arrays.get(f"{_CLASS_PREDICTOR}bias")
        return None if bias is None or len(bias) % _ANCHORS else len(bias) // _ANCHORS

    def with_class_rows(self, arrays: Arrays, rows: list[int], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """The last axis of the class predictor is anchor, then class."""
        return {name: array.reshape(*array.shape[:-1], _ANCHORS, -1)[..., rows].reshape(*array.shape[:-1], -1)
                if self.is_class_predictor(name) else array for name, array in arrays.items()}


def _our_module(name: str) -> str:
    """torchvision's name of a weight -> MLPerf's, which are those of older torchvisions and ours; of a classifier, in the
    backbone."""
    if name.startswith(("conv1.", "bn1.", "layer")):
        return f"backbone.body.{name}"
    name = re.sub(r"^(backbone\.fpn\.(?:inner|layer)_blocks\.\d)\.0\.", r"\1.", name)
    return re.sub(r"^(head\.\w+\.conv)\.(\d)\.0\.", lambda found: f"{found[1]}.{2 * int(found[2])}.", name)


def _with_y_first(array: np.ndarray) -> np.ndarray:
    """[..., anchors x 4] with torch's order of the offsets -> ours."""
    return array.reshape(*array.shape[:-1], -1, 4)[..., YX_OF_XY].reshape(array.shape)


FAMILY = RetinaNetFamily()
