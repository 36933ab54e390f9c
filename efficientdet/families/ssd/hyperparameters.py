"""SSD300's hyperparameters with the defaults of MLPerf on COCO (mlcommons/training, ssd-v1)."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from efficientdet.families.nms_configs import NmsConfigs
from efficientdet.families.removed_hyperparameters import REMOVED_FROM_ALL, Removed
from efficientdet.families.ssd.presets import ACTIVATIONS_PER_PIXEL
from efficientdet.families.torch_family import TorchHyperparameters
from object_detection.geometry.anchor_conventions import ssd300_counts
from program_support.checked_fields import Count, NonNegative, Positive, one_of


@dataclass(frozen=True, kw_only=True)
class SsdHyperparameters(TorchHyperparameters):
    """Hyperparameters of SSD300 with the published defaults."""

    RATE_PER_64: ClassVar[float] = 2 * 2.5e-3  # 2.5e-3 per 32 images
    REMOVED: ClassVar[dict[str, Removed]] = REMOVED_FROM_ALL | {
        key: Removed("the color jitter is always that of MLPerf", (value,))
        for key, value in {"brightness": 0.125, "contrast": 0.5, "saturation": 0.5, "hue": 0.05}.items()
    }

    # input
    image_size: int | str | tuple[int, int] = 300
    max_instances_per_image: int = 200
    train_on_crowds: bool = True
    num_cropping_iterations: Count = 1  # tries per minimum overlap of the random crop; MLPerf: 1 or 50
    # network
    backbone_name: Annotated[str, one_of(*ACTIVATIONS_PER_PIXEL)] = "resnet34"
    # losses
    # which anchors are positive: by IoU thresholds or by ATSS
    label_assignment: Annotated[str, one_of("iou", "atss")] = "iou"
    box_loss_type: Annotated[str, one_of("smooth_l1", "giou", "diou", "ciou")] = "smooth_l1"
    box_loss_weight: NonNegative | None = None  # per positive; None: 1 for smooth_l1, 2 for an IoU loss
    hard_negative_ratio: Positive = 3.0  # negatives per positive
    decayed_weights: str = "all"
    # suppression
    candidates_per_class: Count = 200  # per image, before suppression
    nms_configs: NmsConfigs = field(
        default_factory=lambda: NmsConfigs(
            method="hard", iou_thresh=0.5, score_thresh=0.05, max_nms_inputs=16000, max_output_size=200
        )
    )
    # training
    weight_decay: float = 5e-4
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "stepwise"
    lr_warmup_init: float = 0.0
    lr_warmup_epoch: float = 2.619685  # 300 steps with a batch size of 1,024 on COCO
    first_lr_drop_epoch: float = 40.0
    second_lr_drop_epoch: float = 50.0
    num_epochs: int = 70

    def __post_init__(self):
        super().__post_init__()
        ssd300_counts(self.input_size)
