"""Presets of `--model_name`: the published models; 800 x 800 and 264 classes of Open Images in MLPerf's benchmark."""

from efficientdet.families.preset_values import LearningRate, QuickstartRecipe, StartRecipe
from efficientdet.families.published_files import torchvision_file

BACKBONES = {
    "retinanet-resnet18": "resnet18",
    "retinanet-resnet34": "resnet34",
    "retinanet-resnet50": "resnet50",
    "retinanet-resnext50": "resnext50_32x4d",
}
PRESETS = {model: {"backbone_name": backbone} for model, backbone in BACKBONES.items()}
PUBLISHED_FILES = {
    "retinanet_resnet50_fpn_coco": torchvision_file(
        "retinanet_resnet50_fpn_coco-eeacb38b.pth", 130.267, "RetinaNet of COCO", "box AP 36.4"
    )
}

# Activations per input pixel of each network with 264 classes (test_memory.py counts them).
ACTIVATIONS_PER_PIXEL = {"resnet18": 451, "resnet34": 539, "resnet50": 1044, "resnext50_32x4d": 1256}

# Measured in docs/reference/detectors.md. Without scale jitter the images keep one size.
QUICKSTART = QuickstartRecipe(
    settings={
        "resize": "stretch",
        "optimizer": "sgd",
        "clip_gradients_norm": 10.0,
        "lr_decay_method": "cosine",
        "moving_average_decay": 0.998,
        "train_on_crowds": False,
    },
    random=StartRecipe(
        settings={"trainable_backbone_stages": 5, "is_training_bn": True, "head_kernel_stddev": 0.03},
        rate=LearningRate(per_image=0.0025, maximum=0.02),
        steps=800,  # docs/measurements/accuracy.md: more steps with a smaller input gain nothing
    ),
    efficiency=0.75,
    detector=StartRecipe(rate=LearningRate(per_image=0.000625, maximum=0.01), steps=250),
    stretches=True,
    detectors={"retinanet-resnet50": "retinanet_resnet50_fpn_coco"},
)
