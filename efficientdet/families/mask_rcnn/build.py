"""From hyperparameters to a detector: the one place that knows which of them goes where."""

from dataset.input.resize import FitWithin, Letterbox, ResizeRule
from efficientdet.families.mask_rcnn.hyperparameters import MaskRcnnHyperparameters
from efficientdet.families.suppression import suppression_config
from model.mask_rcnn import MaskRcnnConfig, build_mask_rcnn
from model.two_stage_detector import TwoStageConfig, TwoStageDetector
from object_detection.anchor_conventions import proposal_sizes
from object_detection.proposals import ProposalConfig
from object_detection.region_detections import REGION_SUPPRESSION


def build_detector(hparams: MaskRcnnHyperparameters, *, num_classes: int, precision: str = "float32") -> TwoStageDetector:
    """A detector with random weights."""
    image_size = resize_rule(hparams).size
    networks = build_mask_rcnn(MaskRcnnConfig(
        backbone=hparams.backbone_name, image_size=image_size, num_classes=num_classes, epsilon=hparams.batch_norm_epsilon,
        trainable_stages=hparams.trainable_backbone_stages, trains_batch_norm=hparams.is_training_bn,
        anchor_sizes=proposal_sizes(hparams.anchor_scale),
        proposals=ProposalConfig(candidates_per_level=hparams.candidates_per_level, kept=hparams.proposals),
        suppression=suppression_config(hparams.nms_configs, scores=REGION_SUPPRESSION.scores, clip=True,
                                       box_coder=REGION_SUPPRESSION.box_coder)), precision=precision)
    return TwoStageDetector(networks, TwoStageConfig(
        image_size=image_size,
        proposals=ProposalConfig(candidates_per_level=hparams.training_candidates_per_level, kept=hparams.training_proposals),
        anchors_an_image=hparams.anchors_an_image, regions_an_image=hparams.regions_an_image,
        positive_regions=hparams.positive_regions, region_beta=hparams.region_box_beta,
        weight_decay=hparams.decays_in_loss, decays=hparams.decayed_weights))


def resize_rule(hparams: MaskRcnnHyperparameters) -> ResizeRule:
    """Images keep their aspect."""
    if hparams.resize == "letterbox":
        return Letterbox(hparams.input_size)
    return FitWithin(min(hparams.input_size), max(hparams.longer_side, *hparams.input_size))
