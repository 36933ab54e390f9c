"""Build a Mask R-CNN detector from hyperparameters."""

import math
from dataclasses import replace
from typing import Any

from dataset.input.resize import FitWithin, Letterbox, ResizeRule
from efficientdet.families.mask_rcnn.hyperparameters import MaskRcnnHyperparameters, anchor_levels
from efficientdet.families.suppression import suppression_config
from model.mask_rcnn import MaskRcnnConfig, build_mask_rcnn
from model.two_stage_config import TwoStageConfig
from model.two_stage_detector import TwoStageDetector
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.regions.proposals import PROPOSAL_BOX_CODER, ProposalConfig
from object_detection.regions.region_detections import REGION_BOX_CODER, REGION_SUPPRESSION
from object_detection.regions.roi_align import TORCHVISION_POOLING, RegionPooling

_DLE_PROPOSALS = ProposalConfig(
    kept_per_level=1000, min_side=-math.inf, box_coder=replace(PROPOSAL_BOX_CODER, last_pixel=True)
)
_DLE_REGION_CODER = replace(REGION_BOX_CODER, last_pixel=True)
_DLE_POOLING = RegionPooling(samples=1, min_side=0.0, level_slack=0.0, levels=5)
_DLE_LEARNING: dict[str, Any] = {
    "anchor_match": IouAssigner(positive_iou=0.7, negative_iou=0.3, claim="best"),
    "region_iou_strictly": True,
    "region_coder": _DLE_REGION_CODER,
    "binary_masks": True,
    "normalizer": "nvidia",
}


def build_detector(
    hparams: MaskRcnnHyperparameters, *, num_classes: int, precision: str = "float32"
) -> TwoStageDetector:
    """Build a detector with random weights."""
    image_size, is_dle = resize_rule(hparams).size, hparams.conventions == "dle"
    proposals = _DLE_PROPOSALS if is_dle else ProposalConfig()
    networks = build_mask_rcnn(
        MaskRcnnConfig(
            backbone=hparams.backbone_name,
            image_size=image_size,
            num_classes=num_classes,
            epsilon=hparams.batch_norm_epsilon,
            trainable_stages=hparams.trainable_backbone_stages,
            trains_batch_norm=hparams.is_training_bn,
            anchor_levels=anchor_levels(hparams),
            pooling=_DLE_POOLING if is_dle else TORCHVISION_POOLING,
            proposals=replace(proposals, candidates_per_level=hparams.candidates_per_level, kept=hparams.proposals),
            suppression=suppression_config(
                hparams.nms_configs,
                scores=REGION_SUPPRESSION.scores,
                clip=True,
                box_coder=_DLE_REGION_CODER if is_dle else REGION_BOX_CODER,
            ),
        ),
        precision=precision,
    )
    return TwoStageDetector(
        networks,
        TwoStageConfig(
            image_size=image_size,
            proposals=replace(
                proposals, candidates_per_level=hparams.training_candidates_per_level, kept=hparams.training_proposals
            ),
            anchors_per_image=hparams.anchors_an_image,
            regions_per_image=hparams.regions_an_image,
            positive_regions=hparams.positive_regions,
            region_beta=hparams.region_box_beta,
            weight_decay=hparams.decays_in_loss,
            decays=hparams.decayed_weights,
            **(_DLE_LEARNING if is_dle else {}),
        ),
    )


def resize_rule(hparams: MaskRcnnHyperparameters) -> ResizeRule:
    """Return the resize rule, which keeps the aspect ratio."""
    if hparams.resize == "letterbox":
        return Letterbox(hparams.input_size)
    return FitWithin(min(hparams.input_size), max(hparams.longer_side, *hparams.input_size))
