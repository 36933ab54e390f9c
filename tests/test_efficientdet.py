import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from onnxruntime import InferenceSession
from oracles import TESTDATA
from unfilled import unfilled_weights

from efficientdet.families.efficientdet.build import build_detector, network_config
from efficientdet.families.efficientdet.presets import PRESETS
from efficientdet.families.registry import hyperparameters_of
from efficientdet.plugins.onnx.model import onnx_model
from model.batch_norm import BatchNormalization
from model.bifpn import BifpnConfig, NearestResize, build_bifpn
from model.dense_detector import DenseDetector, DenseDetectorConfig
from model.detection_model import SEED_STATE, named_variables
from model.efficientdet import EfficientDetConfig, build_efficientdet
from model.heads import HeadConfig, build_box_head, build_class_head
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid

SIZES = {  # with 90 classes: variables, their values, the trainable ones; others differ in hyperparameters alone
    "efficientdet-d0": (709, 3_927_203, 3_880_067),
    "efficientdet-d6": (1565, 52_183_766, 51_871_782),
    "efficientdet-d7x": (1902, 77_564_894, 77_147_166),
    "efficientdet-lite0": (588, 3_290_606, 3_243_470),
    "efficientdet-lite1": (719, 4_311_390, 4_248_318),
    "efficientdet-lite2": (775, 5_324_894, 5_252_334),
    "efficientdet-lite3": (922, 8_455_054, 8_350_862),
    "efficientdet-lite3x": (922, 9_392_574, 9_280_862),
    "efficientdet-lite4": (1068, 15_286_398, 15_130_894),
}
ANCHORS = """
efficientdet-d0 49_104
efficientdet-d1 76_725
efficientdet-d2 110_484
efficientdet-d3 150_381
efficientdet-d4 196_416
efficientdet-d5 306_900
efficientdet-d6 306_900
efficientdet-d7 441_936
efficientdet-d7x 442_260
efficientdet-lite0 19_206
efficientdet-lite1 27_621
efficientdet-lite2 37_629
efficientdet-lite3 49_104
efficientdet-lite3x 76_725
efficientdet-lite4 76_725
"""  # at each model's own size


def small_config(**changes):
    """A D0 with a thin pyramid."""
    return EfficientDetConfig(
        **{
            "backbone": "efficientnet-b0",
            "image_size": (64, 64),
            "num_classes": 3,
            "bifpn": BifpnConfig(filters=8, cells=1),
            "head": HeadConfig(filters=8, depth=1),
            "anchors": AnchorConfig(),
            **changes,
        }
    )


def unfilled(config, **options):
    """A network whose weights exist by name and shape only: drawing those of D7x takes most of the time."""
    with unfilled_weights():
        return build_efficientdet(config, **options)


def count(variables):
    return sum(int(np.prod(variable.shape)) for variable in variables)


def test_the_anchors_of_every_preset():
    expected = dict(line.split() for line in ANCHORS.strip().splitlines())
    assert set(expected) == set(PRESETS)
    for name, count in expected.items():
        hparams = hyperparameters_of(name, {})
        assert len(hparams.family.anchors(hparams)) == int(count), name


@pytest.mark.parametrize("model_name", SIZES)
def test_the_size_of_a_model(model_name):
    hparams = hyperparameters_of(model_name, {})
    network, anchors = unfilled(network_config(hparams, num_classes=90)), len(hparams.family.anchors(hparams))
    assert network.output_shape == [(None, anchors, 90), (None, anchors, 4)]
    weights = named_variables(network)
    assert (len(weights), count(weights.values()), count(network.trainable_variables)) == SIZES[model_name]
    assert len(weights) == sum(variable.name != SEED_STATE for variable in network.variables)


def test_names_and_shapes_are_those_of_the_published_checkpoint():
    wanted = json.loads((TESTDATA / "automl_d0_tensors.json").read_text())
    wanted = {name: tuple(shape) for name, shape in wanted.items() if name != "global_step" and "Momentum" not in name}
    network = unfilled(network_config(hyperparameters_of("efficientdet-d0", {}), num_classes=7))
    assert {name: tuple(variable.shape) for name, variable in named_variables(network).items()} == wanted


@pytest.mark.parametrize(
    ("image_size", "levels"), [((100, 75), (3, 7)), ((96, 160), (2, 6)), ((32, 33), (3, 5)), ((100, 75), (4, 5))]
)
def test_outputs_stand_at_the_anchors_of_any_size_and_levels(image_size, levels):
    low, high = levels
    anchors = AnchorConfig(min_level=low, max_level=high, num_scales=2)
    config = small_config(
        image_size=image_size,
        anchors=anchors,
        bifpn=BifpnConfig(filters=8, cells=1, min_level=low, max_level=high),
        head=HeadConfig(filters=8, depth=0, min_level=low),
    )
    wanted = len(anchor_grid(anchors, image_size))
    assert unfilled(config).output_shape == [(None, wanted, 3), (None, wanted, 4)]


@pytest.mark.parametrize(("precision", "dtype"), [("mixed_float16", "float16"), ("mixed_bfloat16", "bfloat16")])
def test_precision_is_of_the_computation_only_and_of_this_network_only(precision, dtype):
    before = keras.config.dtype_policy()
    network = unfilled(small_config(), precision=precision)
    assert keras.config.dtype_policy() == before
    assert {output.dtype for output in network.outputs} == {dtype}
    assert {variable.dtype for variable in network.variables} == {"float32"}


def pyramid_detector(image_size, **changes):
    """A detector of three convolutions, the pyramid and the predictors: what a change in the pyramid reaches."""
    pyramid, head = BifpnConfig(filters=8, cells=2, **changes), HeadConfig(filters=8, depth=0)
    images = keras.Input((*image_size, 3))
    features = [keras.layers.Conv2D(8, 3, strides=2**level, padding="same")(images) for level in range(3, 6)]
    levels, anchors = build_bifpn(features, pyramid), AnchorConfig()
    outputs = [
        build_class_head(levels, head, num_anchors=anchors.per_cell, num_classes=2),
        build_box_head(levels, head, num_anchors=anchors.per_cell),
    ]
    return DenseDetector(keras.Model(images, outputs), DenseDetectorConfig(image_size=image_size, anchors=anchors))


@pytest.mark.parametrize("half_pixel", [False, True])
def test_its_upsampling_is_exported(half_pixel):
    """At 72 x 88 pixels, whose levels are 9, 5, 3, 2 and 1 rows: as ONNX, and traced for a SavedModel."""
    keras.utils.set_random_seed(1)
    detector = pyramid_detector((72, 88), half_pixel_upsampling=half_pixel)
    for variable in detector.network.trainable_variables:
        if len(variable.shape) == 4:
            variable.assign(3 * variable)  # drawn kernels let little through to the outputs
    images = np.random.default_rng(0).integers(0, 256, (1, 72, 88, 3), np.uint8)
    inputs = [images, np.int32([[72, 88]])]
    wanted = [np.asarray(output) for output in detector.outputs(*map(keras.ops.convert_to_tensor, inputs))]
    found = InferenceSession(onnx_model(detector).SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, dict(zip(("images", "sizes"), inputs, strict=True))
    )
    traced = tf.function(detector.outputs)(*map(tf.constant, inputs))
    for layer in detector.network.layers:
        if isinstance(layer, NearestResize):
            layer.half_pixel_centers = not half_pixel
    others = detector.outputs(*map(keras.ops.convert_to_tensor, inputs))
    for output, exported, compiled, other in zip(wanted, found, traced, others, strict=False):  # ONNX: best logits too
        tolerance = 1e-3 * output.std()
        np.testing.assert_allclose(exported, output, atol=tolerance, rtol=0)
        np.testing.assert_allclose(compiled, output, atol=tolerance, rtol=0)
        assert np.abs(np.asarray(other) - output).max() > 100 * tolerance  # the other rule is another network


def test_batch_statistics_can_be_frozen():
    hparams = hyperparameters_of("efficientdet-d0", {"is_training_bn": False, "image_size": 64})
    with unfilled_weights():
        network = build_detector(hparams, num_classes=2).network
    norms = [layer for layer in network.layers if isinstance(layer, BatchNormalization)]
    assert norms
    assert not any(layer.trainable for layer in norms)
