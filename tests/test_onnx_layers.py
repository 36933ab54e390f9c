"""Keras layers as ONNX, run by ONNX Runtime: each kind by itself, and a detector of another family as a whole."""

import keras
import numpy as np
import pytest
from keras import layers, ops
from onnx_sessions import session_of
from other_family import OtherFamily, drawn

from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.inference.runtimes import Network
from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.model import onnx_model
from efficientdet.plugins.onnx.translations import add_network
from model.bifpn import SymmetricMaxPooling2D
from program_support.errors import InputError

IMAGE = (9, 11, 6)
VALUES = np.random.default_rng(0).normal(size=(2, *IMAGE)).astype(np.float32)


def through_onnx(network, values):
    """Outputs of a functional network whose input is `values` as Keras has them."""
    graph = OnnxGraph()
    outputs = {
        f"output {number}": ("float32", ["B", *tensor.shape[1:]]) for number, tensor in enumerate(network.outputs)
    }
    for tensor, name in zip(add_network(graph, network, ["x"]), outputs, strict=True):
        graph.call_output(graph.keras(tensor), name)
    model, session = session_of(graph, {"x": ("float32", ["B", *values.shape[1:]])}, outputs)
    return model, session.run(None, {"x": values})


def assert_the_same(network, values=VALUES):
    model, found = through_onnx(drawn(network), values)
    wanted = keras.tree.flatten(network(values, training=False))
    for one, other in zip(found, map(np.asarray, wanted), strict=True):
        assert one.shape == other.shape
        assert other.std() > 1e-3
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, np.abs(other).max()))
    return [node.op_type for node in model.graph.node]


def of_images(make):
    image = keras.Input(IMAGE)
    return keras.Model(image, make(image))


@pytest.mark.parametrize(
    "make",
    [
        layers.Conv2D(5, 3),
        layers.Conv2D(5, 3, padding="same", activation="relu"),
        layers.Conv2D(5, (3, 2), strides=2, padding="same", use_bias=False),
        layers.Conv2D(5, 4, strides=(2, 3)),
        layers.Conv2D(4, 3, dilation_rate=2, padding="same"),
        layers.Conv2D(4, 3, groups=2),
        layers.DepthwiseConv2D(3, padding="same", activation="tanh"),
        layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2),
        layers.DepthwiseConv2D(3, dilation_rate=2),
        layers.SeparableConv2D(5, 3, strides=2, padding="same", activation="silu"),
        layers.SeparableConv2D(5, 3, depth_multiplier=2),
        layers.Dense(7, activation="relu6"),
        SymmetricMaxPooling2D(),
        layers.MaxPooling2D(3, strides=2, padding="same"),
        layers.MaxPooling2D(2),
        layers.AveragePooling2D(3, strides=2, padding="same"),
        layers.AveragePooling2D((2, 3)),
        layers.GlobalAveragePooling2D(),
        layers.GlobalAveragePooling2D(keepdims=True),
        layers.ZeroPadding2D(((1, 2), (0, 3))),
        layers.BatchNormalization(epsilon=0.01),
        layers.BatchNormalization(scale=False, center=False),
        layers.ReLU(),
        layers.ReLU(max_value=0.5),
        layers.Reshape((33, -1)),
        layers.Reshape((-1, 3, 11, 6)),
        layers.Reshape((11, 9, 6)),
        layers.Flatten(),
        layers.Permute((2, 1, 3)),
        layers.Permute((3, 1, 2)),
        layers.Dropout(0.5),
        layers.Identity(),
        *(
            layers.Activation(name)
            for name in (
                "linear",
                "sigmoid",
                "relu",
                "relu6",
                "tanh",
                "elu",
                "softplus",
                "exponential",
                "softmax",
                "silu",
                "hard_silu",
            )
        ),
    ],
)
def test_each_layer(make):
    """Of a tensor as Keras has it, and of one with channels second."""
    assert_the_same(of_images(make))
    # Named, as Keras may have begun to count again since the layers above were made (tests/unfilled.py).
    assert_the_same(of_images(lambda image: make(layers.Conv2D(6, 1, name="before")(image))))


@pytest.mark.parametrize(
    "make",
    [
        lambda image, convolved: layers.Add()([image, convolved, image]),
        lambda image, convolved: layers.Multiply()([convolved, image]),
        lambda image, convolved: layers.Multiply()([convolved, layers.GlobalAveragePooling2D()(convolved)]),
        lambda image, convolved: layers.Concatenate()([image, convolved]),
        lambda image, convolved: layers.Concatenate(axis=1)([convolved, image]),
        lambda image, convolved: layers.Concatenate(axis=-2)([convolved, convolved]),
        lambda image, convolved: layers.Concatenate(axis=1)(
            [layers.Reshape((-1, 3))(image), layers.Reshape((-1, 3))(convolved)]
        ),
        lambda image, convolved: layers.Conv2D(2, 1)(
            layers.Reshape((1, 1, 6))(layers.GlobalAveragePooling2D()(convolved))
        ),
        lambda image, convolved: layers.Conv2D(2, 1)(
            layers.Reshape((1, 3, 2))(layers.GlobalAveragePooling2D()(convolved))
        ),
        lambda image, convolved: layers.Dense(3)(
            layers.BatchNormalization()(layers.Dense(4)(layers.Flatten()(convolved)))
        ),
    ],
)
def test_several_inputs_and_ranks(make):
    assert_the_same(of_images(lambda image: make(image, layers.Conv2D(6, 3, padding="same")(image))))


def levels(image):
    """Feature maps of two sizes with 8 channels."""
    fine = layers.Conv2D(8, 3, strides=2, padding="same")(image)
    return fine, layers.Conv2D(8, 3, strides=2, padding="same")(fine)


@pytest.mark.parametrize("anchors", [(4, 4), (4, 6)])
def test_heads_of_two_levels_with_anchors_of_their_own(anchors):
    def heads(image):
        rows = [
            layers.Reshape((-1, 3))(layers.Conv2D(3 * count, 3)(features))
            for features, count in zip(levels(image), anchors, strict=True)
        ]
        return layers.Activation("softmax")(layers.Concatenate(axis=1)(rows))

    assert_the_same(of_images(heads))


def test_batch_statistics_go_into_a_convolution_that_nothing_else_reads():
    kinds = assert_the_same(of_images(lambda image: layers.BatchNormalization()(layers.Conv2D(4, 3)(image))))
    assert {*kinds} == {"Transpose", "Conv"}

    def read_twice(image):
        convolved = layers.Conv2D(4, 3)(image)
        return [layers.BatchNormalization()(convolved), layers.ReLU()(convolved)]

    assert {"Mul", "Add", "Conv"} < {*assert_the_same(of_images(read_twice))}
    inner = of_images(lambda image: [layers.BatchNormalization()(image), layers.ReLU()(image)])
    assert_the_same(of_images(lambda image: inner(layers.Conv2D(6, 3, padding="same")(image))))


def test_networks_inside_a_network():
    inner = keras.Sequential([layers.Conv2D(5, 3), layers.ReLU()])
    assert_the_same(of_images(lambda image: [inner(image), layers.GlobalAveragePooling2D()(inner(image))]))


class Changed(layers.Conv2D):
    def call(self, inputs):
        return 2 * super().call(inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            layers.GaussianNoise(1.0, name="noise"),
            "layer noise of type GaussianNoise has no translation to ONNX; define",
        ),
        (Changed(2, 3, name="twice"), "layer twice of type Changed has no translation"),
        (lambda image: image + 1.0, "of type Add has no translation"),
        (layers.Activation("gelu"), "activation gelu has no translation to ONNX; expected one of linear, silu"),
        (layers.LayerNormalization(name="attention"), "layer attention of type LayerNormalization has no translation"),
        (layers.ReLU(threshold=1.0, name="late"), "layer late of type ReLU"),
        (layers.BatchNormalization(axis=1, name="rows"), "layer rows of type BatchNormalization .* over axis 1"),
    ],
)
def test_what_has_no_translation_is_named(make, message):
    with pytest.raises(InputError, match=message):
        add_network(OnnxGraph(), of_images(make), ["x"])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_network_with_outputs_and_layers_of_its_own(runtime):
    detector = OtherFamily()
    images = np.random.default_rng(2).integers(0, 256, (3, 16, 24, 3), np.uint8)
    sizes = np.int32([[16, 24], [16, 10], [9, 17]])
    model = onnx_model(detector)
    assert [output.name for output in model.graph.output] == ["boxes", "maps", "best", "best.1"]
    wanted = [np.asarray(value) for value in keras.tree.flatten(detector.outputs(images, sizes))]
    exported = Network(model.SerializeToString(), runtime=runtime)
    found = exported(images, sizes, lambda outputs, size: tuple(map(np.copy, outputs)))
    for one, other in zip(map(np.stack, zip(*found, strict=True)), wanted, strict=True):
        assert one.shape == other.shape
        assert other.std() > 0.01
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    scales = np.float32([[1, 1], [2, 2], [0.5, 2]])
    by_keras, ours = (
        build_predict(detector, compiled=False, runtime=one)(images, sizes, scales) for one in ("keras", runtime)
    )
    assert ours.masks is by_keras.masks is None
    for one, other in zip(ours[:-1], by_keras[:-1], strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("masks_padding", [True, False])
def test_the_normalization_is_the_detectors_own(masks_padding):
    """Of images as they come: black outside of their size."""
    detector = OtherFamily(masks_padding=masks_padding)
    image, size = np.random.default_rng(3).integers(0, 256, (1, 16, 24, 3), np.uint8), np.int32([[11, 20]])
    image[:, 11:] = image[:, :, 20:] = 0
    detector.network = keras.Model(
        detector.network.input, {"pixels": layers.Identity(name="pixels")(detector.network.input)}
    )
    [[found]] = Network(onnx_model(detector).SerializeToString(), runtime="onnxruntime")(
        image, size, lambda outputs, size: tuple(outputs)
    )
    np.testing.assert_allclose(found, detector.normalize(image, size)[0], rtol=1e-5, atol=1e-6)


def test_a_normalization_without_translation_is_named():
    detector = OtherFamily()
    detector.normalize = lambda images, sizes: ops.square(ops.cast(images, "float32"))
    with pytest.raises(InputError, match=r"OtherFamily\.normalize has no translation to ONNX"):
        onnx_model(detector)
