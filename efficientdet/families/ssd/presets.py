"""The published model: what `--model_name` stands for; 300 x 300 pixels and COCO's 80 classes in MLPerf's benchmark."""

PRESETS = {"ssd300-resnet34": {"backbone_name": "resnet34"}}

# Numbers that the layers of a network put out for each pixel of its input, with 80 classes (test_memory.py counts them).
NUMBERS_PER_PIXEL = {"resnet18": 289, "resnet34": 460, "resnet50": 1224}
