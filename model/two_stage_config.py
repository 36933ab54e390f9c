"""Losses and sampling of a two-stage detector."""

from dataclasses import field
from typing import Annotated

from model.normalization import IMAGENET_MEAN, IMAGENET_STDDEV
from model.weight_decay import DECAYED_WEIGHTS
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.box_coding import BoxCoder
from object_detection.regions.proposals import ProposalConfig
from object_detection.regions.region_detections import REGION_BOX_CODER
from object_detection.regions.region_losses import BETA
from program_support.checked_fields import checked_part, one_of

NORMALIZERS = ("sampled", "nvidia")


@checked_part
class TwoStageConfig:
    """Losses and sampling of the two stages; the defaults are torchvision's.

    Attributes:
        anchors_per_image, regions_per_image: numbers sampled for the losses.
        positive_anchors, positive_regions: largest fraction of positive samples.
        proposals: in training; the network contains the settings for detection.
        region_iou: IoU from which (strictly: above which) a proposal is positive; the others are background.
        *_beta: of the smooth L1 losses.
        binary_masks: see `mask_targets`.
        decays: see `LossConfig`.
        normalizer: the divisors of the losses,

            - "sampled": the number of samples, for boxes too, although only positive samples have one;
            - "nvidia": as in NVIDIA's TensorFlow 2 code. Objectness: the maximum number of sampled anchors. Boxes of
              anchors: the nonzero target coordinates of all positive anchors, per level, then summed. Boxes of regions:
              the coordinates of the positive regions. NVIDIA's Huber losses are beta times the smooth L1 losses here.
    """

    image_size: tuple[int, int]
    proposals: ProposalConfig = field(default_factory=lambda: ProposalConfig(candidates_per_level=2000, kept=2000))
    anchor_match: IouAssigner = field(
        default_factory=lambda: IouAssigner(positive_iou=0.7, negative_iou=0.3, claim="ties")
    )
    anchors_per_image: int = 256
    positive_anchors: float = 0.5
    regions_per_image: int = 512
    positive_regions: float = 0.25
    region_iou: float = 0.5
    region_iou_strictly: bool = False
    binary_masks: bool = False
    normalizer: Annotated[str, one_of(*NORMALIZERS)] = "sampled"
    region_coder: BoxCoder = REGION_BOX_CODER
    anchor_beta: float = BETA
    region_beta: float = BETA
    weight_decay: float = 1e-4
    decays: Annotated[str, one_of(*DECAYED_WEIGHTS)] = "all"
    mean: tuple[float, float, float] = IMAGENET_MEAN
    stddev: tuple[float, float, float] = IMAGENET_STDDEV

    @property
    def masks_per_image(self) -> int:
        """Number of regions with masks per image: the positive regions, which come first."""
        return int(self.regions_per_image * self.positive_regions)
