"""Preset of `--model_name`: the published model; 300 x 300 pixels and COCO's 80 classes in MLPerf's benchmark."""

from efficientdet.families.published_files import CLASSIFIER, torchvision_file
from efficientdet.families.quickstart_recipe import LearningRate, QuickstartRecipe, StartRecipe

PRESETS = {"ssd300-resnet34": {"backbone_name": "resnet34"}}
# The pretrained ResNet-34 of MLPerf's SSD.
PUBLISHED_FILES = {"resnet34-2017": torchvision_file("resnet34-333f7ec4.pth", 83.26, CLASSIFIER, "top-1 73.3")}

# Activations per input pixel of each network with 80 classes (test_memory.py counts them).
ACTIVATIONS_PER_PIXEL = {"resnet18": 289, "resnet34": 460, "resnet50": 1224}

# Near the settings of the 160 steps in docs/reference/detectors.md; measured in docs/measurements/accuracy.md.
QUICKSTART = QuickstartRecipe(
    settings={
        "clip_gradients_norm": 10.0,
        "lr_decay_method": "cosine",
        "moving_average_decay": 0.998,
        "train_on_crowds": False,
    },
    random=StartRecipe(rate=LearningRate(per_image=0.00125, maximum=0.02), steps=2200),
    detector=StartRecipe(rate=LearningRate(per_image=0.0003, maximum=0.005), steps=250, smaller_input_first=False),
    stretches=True,
    min_side=257,  # its last feature map has no cell otherwise
)
