"""RetinaNet (Lin et al. 2017) with ResNet backbones, as in MLPerf. Reads torchvision's COCO weights too."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.hyperparameters import Removed
from efficientdet.families.preset_values import NmsConfigs, suppression_config
from efficientdet.families.torch_family import TorchFamily, TorchHyperparameters, pyramid_module, with_y_first
from efficientdet.plugins.retinanet.presets import ACTIVATIONS_PER_PIXEL, BACKBONES, PRESETS, QUICKSTART
from object_detection.geometry.anchor_grid import (
    RETINANET_SCALES,
    AnchorGrid,
    AnchorLevel,
    feature_sizes,
    grid_of_levels,
    retinanet_sizes,
    rounded_levels,
)
from program_support.checked_fields import (
    Count,
    InsideZeroToOne,
    Limit,
    NonNegative,
    Positive,
    at_least,
    between,
    one_of,
)

if TYPE_CHECKING:
    from model.dense_detector import DenseDetector

RATE = 1e-4
_RATIOS = Limit(
    lambda value: (
        isinstance(value, tuple | list)
        and len(value) > 0
        and all(isinstance(ratio, int | float) and 0 < ratio < math.inf for ratio in value)
    ),
    "ratios of width to height above 0 such as 2*1*0.5",
)
_CLASS_PREDICTOR = "head/classification_head/cls_logits/"
_BOX_PREDICTOR = "head/regression_head/bbox_reg/"
_TORCHVISION_LOGITS = 91 * 9  # per cell
# torchvision loads its published COCO weights with an epsilon of 0, and keeps the aspect ratio.
TORCHVISION_CONVENTIONS = {"batch_norm_epsilon": 0.0, "resize": "fit"}


@dataclass(frozen=True, kw_only=True)
class RetinaNetHyperparameters(TorchHyperparameters):
    """Hyperparameters of RetinaNet with the published defaults."""

    REMOVED: ClassVar[dict[str, Removed]] = TorchHyperparameters.REMOVED | {
        "min_level": Removed("a pyramid from level 2 was removed; anchor_scale=2 gives smaller anchors", (3,))
    }
    RATE_OPTIMIZER: ClassVar[str] = "adam"

    # input
    image_size: int | str | tuple[int, int] = 800
    # "stretch": resize to image_size; "fit": shorter side to image_size, longer side to at most longer_side
    resize: Annotated[str, one_of("stretch", "fit")] = "stretch"
    longer_side: Count = 1333  # pixels, with resize="fit"
    max_instances_per_image: int = 1000
    train_on_crowds: bool = True  # IsGroupOf boxes of Open Images are positives
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES.values())] = "resnext50_32x4d"
    batch_norm_epsilon: NonNegative = 1e-5
    # side of the smallest anchor of a level in cells; with 0.25 the smallest anchor is 2 pixels wide
    anchor_scale: Annotated[float, at_least(0.25)] = 4.0
    aspect_ratios: Annotated[tuple, _RATIOS] = (2.0, 1.0, 0.5)  # width / height of anchors, each in three sizes
    trainable_backbone_stages: Annotated[int, between(0, 5)] = 3  # last of 5 stages (stem first); the others are frozen
    is_training_bn: bool = False
    head_kernel_stddev: Positive = 0.01  # initialization of hidden kernels; use 0.03 without pretrained weights
    # losses
    # in a crowd box, such as one of the complete image for a class without labels, nothing is background of its class
    ignore_in_crowds: bool = False
    alpha: InsideZeroToOne = 0.25  # of the focal loss
    gamma: NonNegative = 2.0  # of the focal loss
    # suppression
    candidates_per_level: Count = 1000  # per image, before suppression
    nms_configs: NmsConfigs = field(
        default_factory=lambda: NmsConfigs(method="hard", iou_thresh=0.5, score_thresh=0.05, max_output_size=300)
    )
    # training
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "constant"
    lr_warmup_init: float = 1e-3 * RATE
    num_epochs: int = 26

    def comparable(self, key: str) -> Any:
        """Return the value of a key in canonical form; aspect ratios as a tuple."""
        return tuple(self.aspect_ratios) if key == "aspect_ratios" else super().comparable(key)

    def published_rate(self, images: int) -> float:
        """Return the published peak learning rate, which does not depend on the batch size."""
        return RATE


def anchor_levels(
    hparams: RetinaNetHyperparameters, image_size: tuple[int, int], cells: Sequence[tuple[int, int]]
) -> list[AnchorLevel]:
    """Return the anchors of P3 to P7, from the image size and the cells (rows, columns) of each level."""
    return rounded_levels(
        image_size,
        cells,
        sizes=retinanet_sizes(hparams.anchor_scale),
        height_to_width=[1 / ratio for ratio in hparams.aspect_ratios],
    )


class RetinaNetFamily(TorchFamily[RetinaNetHyperparameters]):
    """The RetinaNet models."""

    name = "retinanet"
    body = "backbone/body/"
    hyperparameters = RetinaNetHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    conventions = ("batch_norm_epsilon", "resize", "longer_side", "anchor_scale", "aspect_ratios")
    backbone_conventions = ("batch_norm_epsilon",)
    adaptable_conventions = ("resize", "longer_side")

    mlperf: ClassVar = {"benchmark": "ssd", "logs_weights": True}  # up to the rules of 4.1
    coco_class_rows: ClassVar = {91: 1}  # torchvision's rows are category ids

    def build(
        self, hparams: RetinaNetHyperparameters, *, num_classes: int, precision: str = "float32"
    ) -> "DenseDetector":
        from efficientdet.plugins.retinanet.network import RetinaNetConfig, build_retinanet
        from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
        from object_detection.assignment.anchor_assignment import IouAssigner
        from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, FasterRcnnBoxCoder

        image_size = self.resize_rule(hparams).size
        network, cells = build_retinanet(
            RetinaNetConfig(
                backbone=hparams.backbone_name,
                image_size=image_size,
                num_classes=num_classes,
                anchors_per_cell=RETINANET_SCALES * len(hparams.aspect_ratios),
                epsilon=hparams.batch_norm_epsilon,
                trainable_stages=hparams.trainable_backbone_stages,
                trains_batch_norm=hparams.is_training_bn,
                head_kernel_stddev=hparams.head_kernel_stddev,
            ),
            precision=precision,
        )
        return DenseDetector(
            network,
            DenseDetectorConfig(
                image_size=image_size,
                anchors=anchor_levels(hparams, image_size, cells),
                first_head_layer="head.classification_head.conv.0",
                ignore_in_crowds=hparams.ignore_in_crowds or bool(hparams.tile_size),  # cut objects
                assigner=IouAssigner(positive_iou=0.5, negative_iou=0.4, claim="ties"),
                losses=LossConfig(
                    alpha=hparams.alpha,
                    gamma=hparams.gamma,
                    box_loss="l1",
                    box_loss_weight=1.0,
                    normalizer="positives of each image",
                    weight_decay=hparams.decays_in_loss,
                    decays=hparams.decayed_weights,
                ),
                suppression=suppression_config(
                    hparams.nms_configs,
                    candidates_per_level=hparams.candidates_per_level,
                    clip=True,
                    box_coder=FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE),
                ),
            ),
        )

    def anchors(self, hparams: RetinaNetHyperparameters) -> AnchorGrid:
        """Return the anchors of P3 to P7."""
        size = self.resize_rule(hparams).size
        return grid_of_levels(anchor_levels(hparams, size, feature_sizes(size, 7)[3:]))

    def activations_per_pixel(self, hparams: RetinaNetHyperparameters) -> float:
        """Return the value of the published network, also for changed hyperparameters."""
        return ACTIVATIONS_PER_PIXEL[hparams.backbone_name]

    def imported_conventions(self, arrays: Arrays, *, stated: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return torchvision's conventions for its COCO weights, recognized by the number of classes."""
        bias = arrays.get("head.classification_head.cls_logits.bias")
        return dict(TORCHVISION_CONVENTIONS) if bias is not None and len(bias) == _TORCHVISION_LOGITS else {}

    def translated_name(self, name: str) -> str:
        """Return a weight's name as in MLPerf and older versions of torchvision, which this project uses."""
        return re.sub(
            r"^(head\.\w+\.conv)\.(\d)\.0\.", lambda match: f"{match[1]}.{2 * int(match[2])}.", pyramid_module(name)
        )

    def translated_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """Reorder offsets to y first."""
        return with_y_first(array) if name.startswith(_BOX_PREDICTOR) else array

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in the last convolution of the classification head."""
        return name.startswith(_CLASS_PREDICTOR)

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return the length of the class predictor's bias per anchor."""
        bias, anchors = arrays.get(f"{_CLASS_PREDICTOR}bias"), _anchors_per_cell(arrays)
        return None if bias is None or not anchors or len(bias) % anchors else len(bias) // anchors

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the class predictor, whose last axis is (anchor, class)."""
        return ClassLayout(before=shapes[f"{_BOX_PREDICTOR}bias"][0] // 4) if self.is_class_predictor(name) else None


def _anchors_per_cell(arrays: Arrays) -> int:
    return len(arrays.get(f"{_BOX_PREDICTOR}bias", ())) // 4


FAMILY = RetinaNetFamily()
