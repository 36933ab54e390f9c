"""The four families in their own structure but with few and narrow layers, which a test can afford to compile.

python tests/small_families.py PROGRAM.py [--FLAG=VALUE ...]
"""

import contextlib
import runpy
import sys
from collections.abc import Mapping
from functools import partial
from unittest import mock

import keras
import numpy as np

from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.plugins.mask_rcnn import network as mask_rcnn
from efficientdet.plugins.retinanet import network as retinanet
from efficientdet.plugins.ssd import network as ssd
from model import resnet
from model.detection_model import DetectionModel, named_variables, set_value
from object_detection.structures import Batch, Objects

_TRAINED = {"is_training_bn": True, "trainable_backbone_stages": 5}
SMALL = {
    "efficientdet-d0": {"image_size": 64, "fpn_num_filters": 8, "fpn_cell_repeats": 1, "box_class_repeats": 1},
    "retinanet-resnet18": {"image_size": 64, "resize": "stretch", **_TRAINED},
    "ssd300-resnet34": {"image_size": 260, "backbone_name": "resnet18"},
    "mask-rcnn-resnet18": {
        "image_size": 64,
        "candidates_per_level": 20,
        "proposals": 12,
        "training_candidates_per_level": 30,
        "training_proposals": 30,
        "anchors_an_image": 32,
        "regions_an_image": 8,
        **_TRAINED,
    },
}


def small_detector(name: str, weights: Mapping[str, np.ndarray] | None = None):
    """Detector of 3 classes, and hyperparameters, by the name of a preset; weights None: zeros, drawn in no time."""
    hparams = hyperparameters_of(name, {"clip_gradients_norm": 1.0, **SMALL[name]})
    with keras.StatelessScope(), few_narrow_layers():
        detector = build_detector(hparams, num_classes=3, precision="float32")
        for key, variable in named_variables(detector.network).items():
            set_value(variable, np.zeros(variable.shape, np.float32) if weights is None else weights[key])
    return detector, hparams


def drawn_weights(name: str) -> dict[str, np.ndarray]:
    """Weights under which a signal neither dies nor explodes; predictions stay small."""
    random, weights = np.random.default_rng(0), {}
    gain = 2.0 if name.startswith("efficientdet") else 1.0  # its gates halve the signal
    for key, variable in named_variables(small_detector(name)[0].network).items():
        inputs = np.prod(variable.shape[:2] if "depthwise" in key else variable.shape[:-1])
        scale = (gain / inputs) ** 0.5 if key.endswith("kernel") else 0.1
        drawn = random.normal(size=variable.shape) * scale
        weights[key] = np.float32(np.exp(drawn) if key.endswith(("gamma", "variance")) else drawn)
    return weights


@contextlib.contextmanager
def few_narrow_layers():
    """Replace the widths and depths that no hyperparameter sets."""
    efficientnet = partial(
        keras.src.applications.efficientnet.EfficientNet, width_coefficient=0.25, depth_coefficient=0.1, default_size=64
    )
    with (
        mock.patch.object(keras.applications, "EfficientNetB0", efficientnet),
        mock.patch.object(resnet, "WIDTHS", (8, 8, 8, 8)),
        mock.patch.dict(resnet.RESNETS, resnet18=resnet.ResNetConfig((1, 1, 1, 1), bottleneck=False)),
        mock.patch.object(resnet, "WIDTH", 8),
        mock.patch.object(retinanet, "WIDTH", 8),
        mock.patch.object(retinanet, "_DEPTH", 1),
        mock.patch.object(mask_rcnn, "WIDTH", 8),
        mock.patch.object(mask_rcnn, "_REPRESENTATION", 16),
        mock.patch.object(mask_rcnn, "_MASK_CONVOLUTIONS", 1),
        mock.patch.object(ssd, "_EXTRA_MAPS", tuple((8, 8, stride) for *_, stride in ssd._EXTRA_MAPS)),
    ):
        yield


def batch_of(number: int, detector: DetectionModel, *, size: int = 8) -> Batch:
    """Images of noise with up to four objects, whose masks fill their boxes; the same for the same number."""
    random = np.random.default_rng(number)
    height, width = detector.image_size
    corner = random.uniform(0, height / 2, (size, 4, 2))
    sides = random.uniform(height / 8, height / 2, (size, 4, 2))
    return Batch(
        images=random.integers(0, 256, (size, height, width, 3), dtype=np.uint8),
        sizes=np.int32([[height, width], [height - 24, width]] * (size // 2)),
        objects=Objects.of_boxes(
            np.concatenate([corner, corner + sides], axis=-1).astype(np.float32),
            random.integers(0, 3, (size, 4)).astype(np.int32),
            random.random((size, 4)) < 0.7,
            random.random((size, 4)) < 0.1,
        )._replace(masks=np.ones((size, 4, 14, 14), np.uint8)),
        image_ids=np.arange(size, dtype=np.int64) + 2**40,
        positions=np.arange(size, dtype=np.int64),
        scales=np.ones((size, 2), np.float32),
    )


if __name__ == "__main__":
    sys.argv.pop(0)
    with few_narrow_layers():
        runpy.run_path(sys.argv[0], run_name="__main__")
