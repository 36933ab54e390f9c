"""EfficientDet-Lite: google/automl's network, its checkpoints, and a training step with stochastic depth."""

import json

import numpy as np
import pytest
import tensorflow as tf
from oracles import TESTDATA, to_numpy

from dataset.class_names import ClassNames
from efficientdet.checkpoints.restore import restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.families.efficientdet.build import detector_config
from efficientdet.families.published_files import published_files
from efficientdet.families.registry import hyperparameters_of
from model.detection_model import named_variables

SEVEN = ClassNames(tuple(range(1, 8)), tuple("abcdefg"))


def restored(path, **overrides):
    return restore_detector(
        ModelConfig(
            ckpt_path=str(path),
            model_name="efficientdet-lite0",
            model_name_given=True,
            overrides=overrides,
            class_names=SEVEN,
        )
    )


@pytest.fixture(scope="module")
def published():
    """Averages by the names of D0's published checkpoint, without squeeze-and-excitation and fusion weights."""
    shapes = json.loads((TESTDATA / "automl_d0_tensors.json").read_text())
    random, arrays = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        if name == "global_step" or "Momentum" in name or "/se/" in name or "/WSM" in name:
            continue
        is_scale = name.endswith(("gamma", "variance"))
        values = random.uniform(0.5, 1.5, shape) if is_scale else random.normal(0, 0.1, shape)
        arrays[name.replace("efficientnet-b0/", "efficientnet-lite0/")] = values.astype(np.float32)
    return arrays


@pytest.fixture(scope="module")
def checkpoint(published, tmp_path_factory):
    """A checkpoint in the layout of google/automl: every variable raw and averaged, and the optimizer's slots."""
    prefix = tmp_path_factory.mktemp("automl") / "model"
    tensors = {"global_step": np.int64(7)}
    for name, array in published.items():
        tensors |= {name: np.full_like(array, 0.123), f"{name}/ExponentialMovingAverage": array}
        tensors |= {f"{name}/Momentum": np.zeros_like(array)}
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(map(tf.constant, tensors.values())),
    )
    return prefix


@pytest.fixture(scope="module")
def detector(checkpoint):
    return restored(checkpoint, image_size=64).detector


def test_automls_network(golden_folder):
    """Logits reach 25, and the reference is 4e-4 from float64; with the kernels of oneDNN all outputs are equal."""
    golden = np.load(golden_folder / "forward_efficientdet-lite0.npz")
    detector = restored(golden_folder / "efficientdet-lite0-7cls").detector
    outputs = detector.network(golden["network_input"], training=False)
    np.testing.assert_allclose(outputs[0], golden["class_logits"], atol=6e-4, rtol=0)
    np.testing.assert_allclose(outputs[1], golden["box_outputs"], atol=6e-4, rtol=0)
    np.testing.assert_array_equal(detector.anchors, golden["anchors"])
    assert sum(np.prod(variable.shape) for variable in detector.network.trainable_variables) == 3_194_915


def test_a_checkpoint_is_read_by_its_names(detector, published):
    found = {name: to_numpy(variable.value) for name, variable in named_variables(detector.network).items()}
    assert found.keys() == published.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, published[name], err_msg=name)


def test_pixels_are_normalized_with_127_and_128(detector):
    images = np.tile(np.uint8([0, 127, 255]), (1, 64, 64, 1))
    found = to_numpy(detector.normalize(images, np.int32([[64, 32]])))
    np.testing.assert_allclose(found[0, 5, 5], (-127 / 128, 0, 1), atol=1e-6)
    assert not found[:, :, 32:].any()
    assert detector_config(hyperparameters_of("efficientdet-d0", {})).mean == pytest.approx((0.485, 0.456, 0.406))


def test_the_backbone_of_imagenet_is_automls_or_of_keras():
    for model, backbone in (
        ("lite0", "efficientnet-lite0"),
        ("lite3x", "efficientnet-lite3"),
        ("d0", "efficientnet-b0"),
    ):
        hparams = hyperparameters_of(f"efficientdet-{model}", {})
        assert hparams.family.imagenet_backbone(hparams) == backbone
    assert published_files()["efficientnet-lite3"].url.endswith("/efficientnet/lite/efficientnet-lite3.tar.gz")
