"""Label assignment and losses as hyperparameters of the dense families."""

import numpy as np
import pytest

from efficientdet.families.dense_training import assigner_of, box_loss_of
from efficientdet.families.efficientdet.build import detector_config
from efficientdet.families.registry import hyperparameters_of
from model.dense_losses import BOX_LOSSES, CLASS_LOSSES, QUALITY_LOSSES
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.assignment.atss import AtssAssigner
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.geometry.box_geometry import IOU_KINDS
from object_detection.structures import Objects
from program_support.checked_fields import limits_of

CHOICES = ("label_assignment", "class_loss_type", "box_loss_type")


def choices(hparams, key):
    kind = type(hparams).__dataclass_fields__[key].type
    return [choice for limit in limits_of(kind) for choice in limit.choices]


@pytest.mark.parametrize("model_name", ["efficientdet-d0", "retinanet-resnet18", "ssd300-resnet34"])
def test_every_choice_has_an_implementation_and_the_first_is_the_published_one(model_name):
    hparams = hyperparameters_of(model_name, {})
    for key in CHOICES:
        if hasattr(hparams, key):
            assert getattr(hparams, key) == choices(hparams, key)[0]
    for name in choices(hparams, "label_assignment"):
        assert assigner_of(name, by_iou=IouAssigner()) is not None
    for name in choices(hparams, "box_loss_type"):
        assert box_loss_of(name, None, published_weight=1.0)["box_loss"] in {*BOX_LOSSES, *IOU_KINDS}
    if hasattr(hparams, "class_loss_type"):
        for name in choices(hparams, "class_loss_type"):
            assert name.replace("_", " ") in {*CLASS_LOSSES, *QUALITY_LOSSES}


def test_the_weight_of_the_box_loss_follows_its_kind_unless_it_is_given():
    for overrides, wanted in (
        ({}, ("huber", 50.0)),
        ({"box_loss_type": "giou"}, ("giou", 2.0)),
        ({"box_loss_type": "ciou", "box_loss_weight": 5.0}, ("ciou", 5.0)),
        ({"box_loss_weight": 0.0}, ("huber", 0.0)),
    ):
        losses = detector_config(hyperparameters_of("efficientdet-d0", overrides)).losses
        assert (losses.box_loss, losses.box_loss_weight) == wanted


def test_the_published_losses_and_thresholds_are_unchanged():
    config = detector_config(hyperparameters_of("efficientdet-d0", {}))
    assert config.assigner == IouAssigner()
    assert (config.losses.class_loss, config.losses.box_loss, config.losses.iou_loss_type) == ("focal", "huber", None)


@pytest.mark.parametrize(
    ("model_name", "overrides", "kind"),
    [
        (
            "ssd300-resnet34",
            {"label_assignment": "atss", "box_loss_type": "giou", "backbone_name": "resnet18"},
            AtssAssigner,
        ),
        (
            "retinanet-resnet18",
            {
                "label_assignment": "task_aligned",
                "class_loss_type": "varifocal",
                "box_loss_type": "ciou",
                "image_size": 64,
            },
            TaskAlignedAssigner,
        ),
    ],
)
def test_other_families_are_built_with_them(model_name, overrides, kind):
    hparams = hyperparameters_of(model_name, overrides)
    detector = hparams.family.build(hparams, num_classes=3)
    assert isinstance(detector.config.assigner, kind)
    side = hparams.input_size[0]
    images, sizes = np.zeros((1, side, side, 3), np.uint8), np.full((1, 2), side, np.int32)
    objects = Objects.of_boxes(
        np.float32([[[10, 10, 50, 60]]]), np.int32([[1]]), np.array([[True]]), np.array([[False]])
    )
    outputs = detector.outputs(images, sizes, training=True)
    targets = detector.targets(objects, outputs if detector.learns_from_outputs else None)
    assert np.asarray(targets.positive).any()
    assert all(np.isfinite(value) for value in detector.loss_sums(outputs, targets).values())
