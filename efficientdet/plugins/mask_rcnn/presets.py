"""Presets of `--model_name`: the published models."""

from efficientdet.families.preset_values import LearningRate, NmsConfigs, QuickstartRecipe, StartRecipe
from efficientdet.families.published_files import torchvision_file

BACKBONES = {
    "mask-rcnn-resnet18": "resnet18",
    "mask-rcnn-resnet34": "resnet34",
    "mask-rcnn-resnet50": "resnet50",
    "mask-rcnn-resnext50": "resnext50_32x4d",
}
# As in torchvision.
NMS_CONFIGS = NmsConfigs(method="hard", iou_thresh=0.5, score_thresh=0.05, max_nms_inputs=2000, max_output_size=100)
PRESETS = {model: {"backbone_name": backbone} for model, backbone in BACKBONES.items()}
PUBLISHED_FILES = {
    "maskrcnn_resnet50_fpn_coco": torchvision_file(
        "maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", 169.84, "Mask R-CNN of COCO", "box AP 37.9, mask AP 34.6"
    )
}

# Activations per input pixel of the first stage (test_memory.py counts them), and of the second stage per region and
# per mask, with 90 classes.
ACTIVATIONS_PER_PIXEL = {"resnet18": 324, "resnet34": 412, "resnet50": 916, "resnext50_32x4d": 1127}
ACTIVATIONS_PER_REGION, ACTIVATIONS_PER_MASK = 27_600, 523_000

# Measured in docs/reference/detectors.md. Fewer proposals and regions shorten a step; Adam needs fewer steps.
QUICKSTART = QuickstartRecipe(
    settings={
        "resize": "letterbox",
        "mask_size": 56,
        "training_candidates_per_level": 300,
        "training_proposals": 300,
        "candidates_per_level": 300,
        "proposals": 300,
        "regions_an_image": 32,
        "optimizer": "adam",
        "weight_decay": 0.0,
        "clip_gradients_norm": 10.0,
        "lr_decay_method": "cosine",
        "lr_warmup_least_steps": 0,
        "moving_average_decay": 0.998,
    },
    random=StartRecipe(
        settings={"trainable_backbone_stages": 5, "is_training_bn": True},
        rate=LearningRate(per_image=1.25e-4, maximum=5e-4),
        steps=500,
    ),
    detector=StartRecipe(rate=LearningRate(per_image=2.5e-5, maximum=1e-4), steps=125),
    min_side=192,
    fixed_share=0.7,  # estimate: with resnet18 and 64 regions 4.4 s at 128 pixels, 5.0 s at 256
    evaluation_cost=0.9,  # 1.1 s with resnet18 at 256 pixels, masks included
    detectors={"mask-rcnn-resnet50": "maskrcnn_resnet50_fpn_coco"},
)


def proposal_sizes(anchor_scale: float = 8.0) -> tuple[tuple[float, ...], ...]:
    """Return the sides in pixels of the square anchors of P2 to P6, `anchor_scale` cells each."""
    return tuple((2**level * anchor_scale,) for level in range(2, 7))
