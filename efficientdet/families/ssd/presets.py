"""Preset of `--model_name`: the published model; 300 x 300 pixels and COCO's 80 classes in MLPerf's benchmark."""

from efficientdet.families.published_files import CLASSIFIER, torchvision_file

PRESETS = {"ssd300-resnet34": {"backbone_name": "resnet34"}}
# The pretrained ResNet-34 of MLPerf's SSD.
PUBLISHED_FILES = {"resnet34-2017": torchvision_file("resnet34-333f7ec4.pth", 83.26, CLASSIFIER, "top-1 73.3")}

# Activations per input pixel of each network with 80 classes (test_memory.py counts them).
ACTIVATIONS_PER_PIXEL = {"resnet18": 289, "resnet34": 460, "resnet50": 1224}
