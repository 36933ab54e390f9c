"""The published models: what `--model_name` stands for."""

BACKBONES = {"mask-rcnn-resnet18": "resnet18", "mask-rcnn-resnet34": "resnet34", "mask-rcnn-resnet50": "resnet50",
             "mask-rcnn-resnext50": "resnext50_32x4d"}
PRESETS = {model: {"backbone_name": backbone} for model, backbone in BACKBONES.items()}

# Numbers that the layers of the first stage put out for each pixel of the network's input (test_memory.py counts them), and
# those of the second for a region and for its mask, with 90 classes.
NUMBERS_PER_PIXEL = {"resnet18": 324, "resnet34": 412, "resnet50": 916, "resnext50_32x4d": 1127}
NUMBERS_PER_REGION, NUMBERS_PER_MASK = 27_600, 523_000
