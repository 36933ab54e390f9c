"""Mask R-CNN as the registry builds it: each stage, the losses and the detections against torchvision's."""

import keras
import numpy as np
import pytest
from torch_recipe import named_shapes, recipe_weights

from dataset.class_names import ClassNames
from efficientdet.checkpoints.weights import Source, load_weights
from efficientdet.families.registry import build_detector, family_of, hyperparameters_of
from model.detector import losses
from object_detection.structures import Objects

MODEL, CLASSES = "mask-rcnn-resnet50", 90
SIZE = (192, 256)
YX = [1, 0, 3, 2]
EVERYTHING = {"anchors_an_image": 20_000, "regions_an_image": 4096, "positive_regions": 1.0}


def detector_of(model=MODEL, *, classes=CLASSES, **overrides):
    return build_detector(hyperparameters_of(model, {"image_size": "256x192", **overrides}), num_classes=classes)


@pytest.fixture(scope="module")
def published(golden_folder):
    detector = detector_of()
    arrays = recipe_weights(named_shapes(golden_folder, "torchvision_maskrcnn_resnet50_fpn"), 130)
    names = ClassNames(tuple(range(1, CLASSES + 1)), tuple(f"class {number}" for number in range(CLASSES)))
    load_weights(detector.network, Source("maskrcnn.pth", arrays, None), family=family_of(MODEL), class_names=names)
    return detector


def up_to(detector, *layers):
    """The network of the same layers that ends at some of them."""
    return keras.Model(detector.network.inputs, [detector.network.get_layer(name).output for name in layers])


def test_features_and_the_first_stage(golden_folder, published):
    golden = np.load(golden_folder / "families" / "maskrcnn_forward.npz")
    outputs = [np.asarray(values) for values in published.first_stage(golden["network_input"].transpose(0, 2, 3, 1))]
    levels = dict(zip(("p2", "p3", "p4", "p5"), outputs, strict=False))
    for name in ("p2", "p3", "p4"):
        np.testing.assert_allclose(levels[name].mean(axis=(1, 2)), golden[f"{name}_mean"], atol=1e-4)
        np.testing.assert_allclose(levels[name].std(axis=(1, 2)), golden[f"{name}_std"], atol=1e-4)
    np.testing.assert_allclose(levels["p5"].transpose(0, 3, 1, 2), golden["p5"], atol=1e-4)
    np.testing.assert_allclose(levels["p5"].transpose(0, 3, 1, 2)[:, :, ::2, ::2], golden["p6"], atol=1e-4)
    np.testing.assert_allclose(outputs[4], golden["objectness"], atol=1e-4)
    np.testing.assert_allclose(outputs[5], golden["deltas"][..., YX], atol=1e-4)
