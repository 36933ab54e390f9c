"""EfficientDet's hyperparameters, named as in its references: network, losses and suppression."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from dataset.files.untrusted_values import shown
from efficientdet.families.efficientdet.presets import BACKBONES, IMAGENET
from efficientdet.families.hyperparameters import REMOVED_FROM_ALL, Hyperparameters, Removed, check_order
from efficientdet.families.preset_values import NmsConfigs
from object_detection.geometry.anchor_grid import AnchorConfig
from program_support.checked_fields import (
    BelowOne,
    Count,
    CountOrZero,
    InsideZeroToOne,
    NonNegative,
    Positive,
    PositiveShare,
    between,
    one_of,
)
from program_support.errors import InputError

SQUARE_ROOT_TWO = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))
ACTIVATIONS = {  # the reference's names -> Keras's
    "silu": "silu",
    "swish": "silu",
    "swish_native": "silu",
    "hswish": "hard_silu",
    "relu": "relu",
    "relu6": "relu6",
    "mish": "mish",
    "identity": "linear",
}
# Removed keys of NVIDIA's and google/automl's configurations
_NOTHING_DONE = "it had no effect"

REMOVED = {
    "autoaugment_policy": Removed("the augmentation is flipping, scaling and cropping"),
    "backbone_config": Removed("the backbones are those of keras.applications"),
    "backbone_init": Removed("use --backbone_init"),
    "ckpt_var_scope": Removed("checkpoints hold one model"),
    "data_format": Removed("images are always channels last; XLA chooses its own layout", ("channels_last", None)),
    "dataset_type": Removed("records are TFRecords"),
    "drop_remainder": Removed("every training batch is full, the last evaluation batch is filled up", (True,)),
    "fpn_config": Removed("use fpn_name"),
    "grad_checkpoint": Removed(_NOTHING_DONE, (False, None)),
    "grid_mask": Removed("the augmentation is flipping, scaling and cropping", (False, None)),
    "heads": Removed("there is no segmentation head", (("object_detection",), "object_detection", None)),
    "img_summary_steps": Removed(_NOTHING_DONE),
    "label_map": Removed("class names are stored with the records; --class_names names those of a checkpoint"),
    "map_freq": Removed("use --eval_period", (5, None)),
    "mixed_precision": Removed("use --precision", (False, None)),
    "mixed_precision_on_inputs": Removed(_NOTHING_DONE, (False, None)),
    "model_optimizations": Removed("there is no pruning", ({}, None)),
    "nms_configs.pyfunc": Removed("suppression always runs on the device", (True, False, None)),
    "poly_lr_power": Removed("no schedule is a polynomial", (0.9, None)),
    "positives_momentum": Removed("positives are counted in the batch"),
    "regenerate_source_id": Removed("a record without an image id always gets one from its content", (False, None)),
    "sample_image": Removed("use infer.py"),
    "save_freq": Removed("use --checkpoint_period and --checkpoint_steps", ("epoch", None)),
    "scale_range": Removed("use mean_rgb=127.5 and stddev_rgb=127.5", (False, None)),
    "seg_num_classes": Removed("there is no segmentation head", (3, None)),
    "shuffle_buffer": Removed("every epoch is a permutation of all records", (5000, None)),
    "skip_crowd_during_training": Removed("use train_on_crowds", (True,)),
    "skip_mismatch": Removed(
        "a mismatch is an error; if the classes differ, the class predictor is reinitialized", (True, None)
    ),
    "strategy": Removed("use JAX or Horovod for several devices"),
    "target_size": Removed("the scale jitter is relative to image_size"),
    "tflite_max_detections": Removed("a .tflite of export.py has nms_configs.max_output_size detections", (100, None)),
    "use_keras_model": Removed("all models are Keras models", (True,)),
    "verbose": Removed("progress is a bar on a terminal and lines in a log", (1, None)),
}


@dataclass(frozen=True, kw_only=True)
class EfficientDetHyperparameters(Hyperparameters):
    """Hyperparameters of EfficientDet with the published defaults."""

    REMOVED: ClassVar[dict[str, Removed]] = REMOVED_FROM_ALL | REMOVED
    RESOLVED: ClassVar[dict[tuple[str, Any], Any]] = {
        ("fpn_name", None): "bifpn",
        ("fpn_name", "bifpn_dyn"): "bifpn",
        ("fpn_weight_method", None): "fastattn",
        ("loss_scale", None): 2.0**15,
        ("max_nms_inputs", 0): 5000,
        ("lr_decay_method", None): "cosine",
        ("first_lr_drop_epoch", None): 200.0,
        ("second_lr_drop_epoch", None): 250.0,
    }

    model_name: str = "efficientdet-d0"
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES)] = "efficientnet-b0"
    fpn_num_filters: Count = 64  # channels of the BiFPN and the heads
    fpn_cell_repeats: Count = 3  # BiFPN cells
    fpn_name: Annotated[str, one_of("bifpn", "qufpn")] = "bifpn"  # paths of a cell; qufpn: four, as in efficientdet_q0
    fpn_weight_method: Annotated[str, one_of("fastattn", "sum")] = "fastattn"
    fusion_relu: bool = True  # ReLU on the fusion weights
    half_pixel_upsampling: bool = False  # rule for odd level sizes: True: NVIDIA's, False: google/automl's
    box_class_repeats: CountOrZero = 3  # hidden convolutions of each head
    min_level: Annotated[int, between(1, 5)] = 3  # finest pyramid level, at 1/2^level of the resolution
    max_level: Annotated[int, between(2, 10)] = 7  # coarsest pyramid level; a cell of level 10 is 1,024 pixels wide
    num_scales: Count = 3  # anchor scales per octave
    aspect_ratios: tuple = SQUARE_ROOT_TWO  # (width, height) factors, or single ratios r: sqrt(r), 1 / sqrt(r)
    anchor_scale: Positive = 4.0  # side of the smallest anchor of a level in cells
    act_type: Annotated[str, one_of(*ACTIVATIONS)] = "silu"
    separable_conv: bool = True
    apply_bn_for_resampling: bool = True
    conv_after_downsample: bool = False
    conv_bn_act_pattern: bool = False
    conv_padding: Annotated[str, one_of("same", "symmetric")] = "same"  # with stride 2: TensorFlow's or PyTorch's
    batch_norm_epsilon: Positive = 1e-3  # the backbone's
    survival_prob: PositiveShare | None = None  # of stochastic depth; None: no stochastic depth
    mean_rgb: tuple = IMAGENET["mean_rgb"]  # subtracted from red, green and blue (0 to 255); one number: from all
    stddev_rgb: tuple = IMAGENET["stddev_rgb"]  # by which red, green and blue are then divided; one number: all
    normalizations: Annotated[int, one_of(1, 2)] = 1  # how often the input is normalized; 2: NVIDIA's convention
    # losses
    # which anchors are positive: by IoU thresholds, or by the network's outputs (task alignment)
    label_assignment: Annotated[str, one_of("iou", "task_aligned")] = "iou"
    # quality_focal: the target is the IoU of the predicted box, or the score of task_aligned
    class_loss_type: Annotated[str, one_of("focal", "quality_focal")] = "focal"
    # in a crowd box, such as one of the complete image for a class without labels, nothing is background of its class
    ignore_in_crowds: bool = False
    label_smoothing: BelowOne = 0.0  # of the focal loss
    alpha: InsideZeroToOne = 0.25  # of the focal loss
    gamma: NonNegative = 1.5  # of the focal loss
    delta: Positive = 0.1  # of the Huber loss of the boxes
    box_loss_type: Annotated[str, one_of("huber", "giou")] = "huber"
    # divided by the number of positives, with huber by that of their coordinates; None: 50 for huber, 2 for giou
    box_loss_weight: NonNegative | None = None
    iou_loss_type: Annotated[str, one_of("iou", "giou", "diou", "ciou")] | None = None  # beside box_loss_type
    iou_loss_weight: NonNegative = 1.0  # of iou_loss_type, divided by four times the number of positives
    # suppression
    nms_configs: NmsConfigs = field(default_factory=NmsConfigs)

    def __post_init__(self):
        super().__post_init__()
        check_order(self, "min_level", "max_level", may_be_equal=False)
        normalized_aspect_ratios(self.aspect_ratios)
        for key in ("mean_rgb", "stddev_rgb"):
            object.__setattr__(self, key, _of_each_color(key, getattr(self, key)))

    def comparable(self, key: str) -> Any:
        """Return the value of a key in canonical form; aspect ratios as pairs."""
        return normalized_aspect_ratios(self.aspect_ratios) if key == "aspect_ratios" else super().comparable(key)


def _of_each_color(key: str, value: Any) -> tuple[float, ...]:
    """Return the numbers of red, green and blue from three or one.

    Raises:
        InputError: for others than 0 to 255.
    """
    numbers = value if isinstance(value, tuple) else (value,) * 3
    valid = len(numbers) == 3 and all(isinstance(number, int | float) and 0 <= number <= 255 for number in numbers)
    if not valid or (key == "stddev_rgb" and 0 in numbers):
        above = " above 0" if key == "stddev_rgb" else ""
        raise InputError(f"hparam {key} is {shown(value)}; expected one or three numbers{above}, at most 255")
    return tuple(map(float, numbers))


def normalized_aspect_ratios(aspect_ratios: Any) -> tuple[tuple[float, float], ...]:
    """Return pairs (width factor, height factor); a single ratio r becomes (sqrt(r), 1 / sqrt(r))."""
    try:
        pairs = tuple(
            (math.sqrt(ratio), 1 / math.sqrt(ratio))
            if isinstance(ratio, int | float)
            else (float(ratio[0]), float(ratio[1]))
            for ratio in aspect_ratios
        )
    except (TypeError, ValueError, LookupError, ZeroDivisionError):
        pairs = ()
    if not pairs or not all(0 < factor < math.inf for pair in pairs for factor in pair):
        raise InputError(f"hparam aspect_ratios is {shown(aspect_ratios)}; expected ratios above 0 such as 1.0*2.0*0.5")
    return pairs


def anchor_config(hparams: EfficientDetHyperparameters) -> AnchorConfig:
    """Return the configuration of the anchors."""
    return AnchorConfig(
        min_level=hparams.min_level,
        max_level=hparams.max_level,
        num_scales=hparams.num_scales,
        aspect_ratios=normalized_aspect_ratios(hparams.aspect_ratios),
        anchor_scale=hparams.anchor_scale,
    )
