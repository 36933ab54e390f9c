"""The published models: what `--model_name` stands for."""

BACKBONES = {"mask-rcnn-resnet18": "resnet18", "mask-rcnn-resnet34": "resnet34", "mask-rcnn-resnet50": "resnet50",
             "mask-rcnn-resnext50": "resnext50_32x4d"}
PRESETS = {model: {"backbone_name": backbone} for model, backbone in BACKBONES.items()}

# Numbers that the layers of a network put out for each pixel of its input (test_memory.py counts them), as RetinaNet's.
NUMBERS_PER_PIXEL = {"resnet18": 451, "resnet34": 539, "resnet50": 1044, "resnext50_32x4d": 1256}
