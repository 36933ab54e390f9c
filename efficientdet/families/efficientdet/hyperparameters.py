"""The keys of EfficientDet's references and their defaults: network, losses and suppression."""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dataset.files.untrusted_values import shown
from efficientdet.families.efficientdet.presets import BACKBONES
from efficientdet.families.efficientdet.reference_keys import GONE
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.limits import ABOVE_ZERO, BELOW_ONE, Limit, at_least, check_order, one_of
from efficientdet.families.nms_configs import NMS_LIMITS, NmsConfigs
from efficientdet.families.removed_hyperparameters import Gone
from object_detection.geometry.anchor_grid import AnchorConfig
from program_support.errors import InputError

SQUARE_ROOT_TWO = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))
ACTIVATIONS = {  # the reference's names -> Keras's
    "silu": "silu", "swish": "silu", "swish_native": "silu", "hswish": "hard_silu", "relu": "relu", "relu6": "relu6",
    "mish": "mish", "identity": "linear",
}
_COARSEST_LEVEL = 10  # its cells are 1,024 pixels wide

_LIMITS = {
    "backbone_name": one_of(*BACKBONES),
    "fpn_num_filters": at_least(1),
    "fpn_cell_repeats": at_least(1),
    "fpn_weight_method": one_of("fastattn", "sum"),
    "box_class_repeats": at_least(0),
    "min_level": Limit(lambda value: 1 <= value <= 5, "1 to 5, the levels of the backbone"),
    "max_level": Limit(lambda value: 2 <= value <= _COARSEST_LEVEL, f"2 to {_COARSEST_LEVEL}"),
    "num_scales": at_least(1),
    "anchor_scale": ABOVE_ZERO,
    "act_type": one_of(*ACTIVATIONS),
    "survival_prob": Limit(lambda value: 0 < value <= 1, "above 0, up to 1"),
    "normalisations": one_of(1, 2),
    "label_smoothing": BELOW_ONE,
    "alpha": Limit(lambda value: 0 < value < 1, "above 0 and below 1"),
    "gamma": at_least(0),
    "delta": ABOVE_ZERO,
    "box_loss_weight": at_least(0),
    "iou_loss_type": one_of("iou", "giou", "diou", "ciou"),
    "iou_loss_weight": at_least(0),
    **NMS_LIMITS,
}


@dataclass(frozen=True, kw_only=True)
class EfficientDetHyperparameters(Hyperparameters):
    """Defaults as published."""

    LIMITS: ClassVar[dict[str, Limit]] = Hyperparameters.LIMITS | _LIMITS
    GONE: ClassVar[dict[str, Gone]] = GONE
    RESOLVED: ClassVar[dict[tuple[str, Any], Any]] = {
        ("fpn_weight_method", None): "fastattn", ("loss_scale", None): 2.0**15, ("max_nms_inputs", 0): 5000,
        ("lr_decay_method", None): "cosine", ("first_lr_drop_epoch", None): 200.0, ("second_lr_drop_epoch", None): 250.0,
    }

    model_name: str = "efficientdet-d0"
    # network
    backbone_name: str = "efficientnet-b0"
    fpn_num_filters: int = 64
    fpn_cell_repeats: int = 3
    fpn_weight_method: str = "fastattn"
    fusion_relu: bool = True
    half_pixel_upsampling: bool = False  # where a level is not half of the next: NVIDIA's rule, not google/automl's
    box_class_repeats: int = 3
    min_level: int = 3
    max_level: int = 7
    num_scales: int = 3
    aspect_ratios: tuple = SQUARE_ROOT_TWO  # (width, height) factors, or single ratios r: sqrt(r), 1 / sqrt(r)
    anchor_scale: float = 4.0
    act_type: str = "silu"
    separable_conv: bool = True
    apply_bn_for_resampling: bool = True
    conv_after_downsample: bool = False
    conv_bn_act_pattern: bool = False
    survival_prob: float | None = None
    normalisations: int = 1
    # losses
    label_smoothing: float = 0.0
    alpha: float = 0.25
    gamma: float = 1.5
    delta: float = 0.1
    box_loss_weight: float = 50.0
    iou_loss_type: str | None = None
    iou_loss_weight: float = 1.0
    # suppression
    nms_configs: NmsConfigs = field(default_factory=NmsConfigs)

    def __post_init__(self):
        super().__post_init__()
        check_order(vars(self), "min_level", "max_level", may_be_equal=False)
        normalised_aspect_ratios(self.aspect_ratios)

    def comparable(self, key: str) -> Any:
        """Of aspect ratios, the pairs that both ways of writing them mean."""
        return normalised_aspect_ratios(self.aspect_ratios) if key == "aspect_ratios" else super().comparable(key)


def normalised_aspect_ratios(aspect_ratios: Any) -> tuple[tuple[float, float], ...]:
    """Single ratios r as (sqrt(r), 1 / sqrt(r)), pairs (width factor, height factor) as they are."""
    try:
        pairs = tuple((math.sqrt(ratio), 1 / math.sqrt(ratio)) if isinstance(ratio, int | float)
                      else (float(ratio[0]), float(ratio[1])) for ratio in aspect_ratios)
    except (TypeError, ValueError, LookupError, ZeroDivisionError):
        pairs = ()
    if not pairs or not all(0 < factor < math.inf for pair in pairs for factor in pair):
        raise InputError(f"hparam aspect_ratios is {shown(aspect_ratios)}; wanted ratios above 0 such as 1.0*2.0*0.5")
    return pairs


def anchor_config(hparams: EfficientDetHyperparameters) -> AnchorConfig:
    """Return the anchors."""
    return AnchorConfig(min_level=hparams.min_level, max_level=hparams.max_level, num_scales=hparams.num_scales,
                        aspect_ratios=normalised_aspect_ratios(hparams.aspect_ratios), anchor_scale=hparams.anchor_scale)
