"""Build a RetinaNet detector from hyperparameters."""

from dataset.input.resize import FitWithin, ResizeRule, Stretch
from efficientdet.families.dense_training import assigner_of, box_loss_of
from efficientdet.families.retinanet.hyperparameters import RetinaNetHyperparameters, anchor_levels
from efficientdet.families.suppression import suppression_config
from model.dense_detector import DenseDetector, DenseDetectorConfig
from model.dense_losses import LossConfig
from model.retinanet import RetinaNetConfig, build_retinanet
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.anchor_conventions import RETINANET_SCALES
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, FasterRcnnBoxCoder


def build_detector(hparams: RetinaNetHyperparameters, *, num_classes: int, precision: str = "float32") -> DenseDetector:
    """Build a detector with random weights."""
    image_size = resize_rule(hparams).size
    network, cells = build_retinanet(
        RetinaNetConfig(
            backbone=hparams.backbone_name,
            image_size=image_size,
            num_classes=num_classes,
            min_level=hparams.min_level,
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
            assigner=assigner_of(
                hparams.label_assignment, by_iou=IouAssigner(positive_iou=0.5, negative_iou=0.4, claim="ties")
            ),
            losses=LossConfig(
                class_loss=hparams.class_loss_type.replace("_", " "),
                alpha=hparams.alpha,
                gamma=hparams.gamma,
                **box_loss_of(hparams.box_loss_type, hparams.box_loss_weight, published_weight=1.0),
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


def resize_rule(hparams: RetinaNetHyperparameters) -> ResizeRule:
    """Return the resize rule: MLPerf's stretches images to one size; torchvision's keeps the aspect ratio."""
    if hparams.resize == "stretch":
        return Stretch(hparams.input_size)
    return FitWithin(min(hparams.input_size), max(hparams.longer_side, *hparams.input_size))
