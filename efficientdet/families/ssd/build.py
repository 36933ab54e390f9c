"""Build an SSD detector from hyperparameters."""

from dataset.input.overlap_crop import OverlapCrop
from efficientdet.families.dense_training import assigner_of, box_loss_of
from efficientdet.families.ssd.hyperparameters import SsdHyperparameters
from efficientdet.families.suppression import suppression_config
from model.dense_detector import DenseDetector, DenseDetectorConfig
from model.dense_losses import LossConfig
from model.ssd import SsdConfig, build_ssd
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.anchor_conventions import ssd300_levels
from object_detection.geometry.box_coding import FasterRcnnBoxCoder

CODER = FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0))  # the reference's variances 0.1 and 0.2


def build_detector(hparams: SsdHyperparameters, *, num_classes: int, precision: str = "float32") -> DenseDetector:
    """Build a detector with random weights."""
    network = build_ssd(
        SsdConfig(
            image_size=hparams.input_size,
            num_classes=num_classes,
            backbone=hparams.backbone_name,
            trains_batch_norm=hparams.is_training_bn,
        ),
        precision=precision,
    )
    return DenseDetector(
        network,
        DenseDetectorConfig(
            image_size=hparams.input_size,
            anchors=ssd300_levels(hparams.input_size),
            assigner=assigner_of(
                hparams.label_assignment, by_iou=IouAssigner(positive_iou=0.5, strictly=True, claim="best, last")
            ),
            losses=LossConfig(
                class_loss="softmax cross entropy",
                **box_loss_of(hparams.box_loss_type, hparams.box_loss_weight, published_weight=1.0),
                delta=1.0,
                normalizer="positives of each image",
                hard_negative_ratio=hparams.hard_negative_ratio,
                weight_decay=hparams.decays_in_loss,
                decays=hparams.decayed_weights,
            ),
            suppression=suppression_config(
                hparams.nms_configs,
                drops_equal=True,
                scores="softmax",
                candidates_per_class=hparams.candidates_per_class,
                box_coder=CODER,
            ),
        ),
    )


def augmentation(hparams: SsdHyperparameters) -> OverlapCrop:
    """Return the augmentation: random crop and horizontal flip."""
    return OverlapCrop(
        hparams.input_size,
        tries=hparams.num_cropping_iterations,
        flip_probability=0.5 if hparams.input_rand_hflip else 0.0,
    )
