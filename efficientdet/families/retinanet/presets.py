"""Presets of `--model_name`: the published models; 800 x 800 and 264 classes of Open Images in MLPerf's benchmark."""

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
