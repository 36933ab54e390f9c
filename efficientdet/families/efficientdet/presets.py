"""Presets of `--model_name`: the published models (Tan et al. 2020, table 1; values of google/automl)."""

from efficientdet.families.published_files import PublishedFile
from efficientdet.families.quickstart_recipe import LearningRate, QuickstartRecipe

BACKBONES = tuple(f"efficientnet-b{number}" for number in range(8))


def _preset(backbone: int, image_size: int, filters: int, cells: int, head_depth: int, **others) -> dict:
    return {
        "backbone_name": BACKBONES[backbone],
        "image_size": image_size,
        "fpn_num_filters": filters,
        "fpn_cell_repeats": cells,
        "box_class_repeats": head_depth,
        **others,
    }


PRESETS = {
    "efficientdet-d0": _preset(0, 512, 64, 3, 3),
    "efficientdet-d1": _preset(1, 640, 88, 4, 3),
    "efficientdet-d2": _preset(2, 768, 112, 5, 3),
    "efficientdet-d3": _preset(3, 896, 160, 6, 4),
    "efficientdet-d4": _preset(4, 1024, 224, 7, 4),
    "efficientdet-d5": _preset(5, 1280, 288, 7, 4),
    "efficientdet-d6": _preset(6, 1280, 384, 8, 5, fpn_weight_method="sum"),
    "efficientdet-d7": _preset(6, 1536, 384, 8, 5, fpn_weight_method="sum", anchor_scale=5.0),
    "efficientdet-d7x": _preset(7, 1536, 384, 8, 5, fpn_weight_method="sum", max_level=8),
}

_GOOGLE = "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet/coco2"
_AP = {
    "d0": "34.3",
    "d1": "40.2",
    "d2": "43.5",
    "d3": "46.8",
    "d4": "49.3",
    "d5": "51.2",
    "d6": "52.1",
    "d7": "53.4",
    "d7x": "54.4",
}  # on val2017, google/automl's README
PUBLISHED_FILES = {
    f"efficientdet-{size}": PublishedFile(
        f"efficientdet-{size}.tar.gz", None, "EfficientDet of COCO", f"box AP {ap}", _GOOGLE
    )
    for size, ap in _AP.items()
}

# Activations per input pixel of each network with 90 classes (test_memory.py counts them).
ACTIVATIONS_PER_PIXEL = {
    "efficientdet-d0": 599,
    "efficientdet-d1": 817,
    "efficientdet-d2": 886,
    "efficientdet-d3": 1210,
    "efficientdet-d4": 1608,
    "efficientdet-d5": 2156,
    "efficientdet-d6": 2862,
    "efficientdet-d7": 2862,
    "efficientdet-d7x": 3585,
}

# Conventions in which NVIDIA's networks differ from google/automl's; imported checkpoints of NVIDIA need them.
NVIDIA_CONVENTIONS = {
    "aspect_ratios": ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)),
    "normalizations": 2,
    "fusion_relu": False,
    "half_pixel_upsampling": True,
}

# Measured in docs/tutorials/bccd.md. The published jitter is 0.1 to 2: less suits a short training.
QUICKSTART = QuickstartRecipe(
    random_settings={"jitter_min": 0.8, "jitter_max": 1.25},
    random_rate=LearningRate(per_image=0.025, maximum=0.16),
    pretrained_rate=LearningRate(per_image=0.0025, maximum=0.04),
)
