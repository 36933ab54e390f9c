"""Build an EfficientDet detector from hyperparameters."""

from efficientdet.families.efficientdet.hyperparameters import ACTIVATIONS, EfficientDetHyperparameters, anchor_config
from efficientdet.families.preset_values import suppression_config
from model.batch_norm import BatchNormalization
from model.bifpn import BifpnConfig
from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
from model.efficientdet import EfficientDetConfig, build_efficientdet
from model.heads import HeadConfig
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.assignment.task_aligned import TaskAlignedAssigner

_BOX_LOSS_WEIGHTS = {"huber": 50.0, "giou": 2.0}  # as published; as in ATSS, GFL and TOOD


def build_detector(
    hparams: EfficientDetHyperparameters, *, num_classes: int, precision: str = "float32"
) -> DenseDetector:
    """Build a detector with random weights."""
    network = build_efficientdet(network_config(hparams, num_classes=num_classes), precision=precision)
    if not hparams.is_training_bn:
        for layer in network.layers:
            if isinstance(layer, BatchNormalization):
                layer.trainable = False
    return DenseDetector(network, detector_config(hparams))


def network_config(hparams: EfficientDetHyperparameters, *, num_classes: int) -> EfficientDetConfig:
    """Return the configuration of the network."""
    activation = ACTIVATIONS[hparams.act_type]
    return EfficientDetConfig(
        backbone=hparams.backbone_name,
        image_size=hparams.input_size,
        num_classes=num_classes,
        bifpn=BifpnConfig(
            filters=hparams.fpn_num_filters,
            cells=hparams.fpn_cell_repeats,
            min_level=hparams.min_level,
            max_level=hparams.max_level,
            pyramid=hparams.fpn_name,
            weight_method=hparams.fpn_weight_method,
            fusion_relu=hparams.fusion_relu,
            half_pixel_upsampling=hparams.half_pixel_upsampling,
            padding=hparams.conv_padding,
            activation=activation,
            separable_conv=hparams.separable_conv,
            apply_bn_for_resampling=hparams.apply_bn_for_resampling,
            conv_after_downsample=hparams.conv_after_downsample,
            conv_bn_act_pattern=hparams.conv_bn_act_pattern,
        ),
        head=HeadConfig(
            filters=hparams.fpn_num_filters,
            depth=hparams.box_class_repeats,
            min_level=hparams.min_level,
            activation=activation,
            separable_conv=hparams.separable_conv,
        ),
        anchors=anchor_config(hparams),
        survival_prob=hparams.survival_prob,
        backbone_epsilon=hparams.batch_norm_epsilon,
    )


def detector_config(hparams: EfficientDetHyperparameters) -> DenseDetectorConfig:
    """Return the configuration of losses and post-processing."""
    return DenseDetectorConfig(
        image_size=hparams.input_size,
        anchors=anchor_config(hparams),
        first_head_layer="class_net.class-0",
        ignore_in_crowds=hparams.ignore_in_crowds or bool(hparams.tile_size),  # cut objects
        assigner=TaskAlignedAssigner() if hparams.label_assignment == "task_aligned" else IouAssigner(),
        losses=LossConfig(
            class_loss=hparams.class_loss_type.replace("_", " "),
            alpha=hparams.alpha,
            gamma=hparams.gamma,
            label_smoothing=hparams.label_smoothing,
            delta=hparams.delta,
            box_loss=hparams.box_loss_type,
            box_loss_weight=_BOX_LOSS_WEIGHTS[hparams.box_loss_type]
            if hparams.box_loss_weight is None
            else hparams.box_loss_weight,
            iou_loss_type=hparams.iou_loss_type,
            iou_loss_weight=hparams.iou_loss_weight,
            weight_decay=hparams.decays_in_loss,
            decays=hparams.decayed_weights,
        ),
        suppression=suppression_config(hparams.nms_configs),
        mean=_fractions(hparams.mean_rgb),
        stddev=_fractions(hparams.stddev_rgb),
        normalizations=hparams.normalizations,
    )


def _fractions(rgb: tuple[float, float, float]) -> tuple[float, float, float]:
    return rgb[0] / 255, rgb[1] / 255, rgb[2] / 255
