"""The network of an ONNX file computes Keras's outputs in each runtime; the host post-processes both the same way."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import keras
import numpy as np
import pytest
from color_artifact import SIDE, write_color_artifact
from miniature import miniature_detector
from onnx import TensorProto
from PIL import Image

from dataset.input.resize import letterbox
from efficientdet.families.efficientdet.build import build_detector
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference import runtimes
from efficientdet.inference.calibration import calibration_of_files
from efficientdet.inference.checkpoint_model import build_predict, exported_network
from efficientdet.inference.predictor import host_predictor
from efficientdet.inference.runtimes import Network
from efficientdet.plugins.onnx.model import onnx_model, quantized
from object_detection.structures import stacked
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs
from program_support.errors import InputError
from program_support.processor import sums_of_bytes_saturate

RUNTIMES = ("onnxruntime", "openvino")


def copied(outputs, size):
    logits, deltas, best_logits = map(np.copy, outputs)
    return NetworkOutputs(logits.reshape(len(best_logits), -1), deltas, best_logits)


def drawn_anchors(random, count):
    anchors = np.float32(random.uniform(0, 60, (count, 2)))
    return np.concatenate([anchors, anchors + np.float32(random.uniform(1, 40, (count, 2)))], axis=1)


def assert_the_host_finds_the_same(logits, deltas, anchors, **options):
    """Compare the detections on the host with those of the backend, and return them."""
    config = SuppressionConfig(**options)
    with np.errstate(all="ignore"):
        wanted = detections_from_outputs(*map(keras.ops.convert_to_tensor, (logits, deltas, anchors)), config=config)
    found = stacked(
        [
            detections_on_host(NetworkOutputs(*image, image[0].max(axis=-1)), anchors, config=config)
            for image in zip(logits, deltas, strict=True)
        ]
    )
    np.testing.assert_array_equal(found.valid, np.asarray(wanted.valid))
    np.testing.assert_array_equal(found.classes, np.asarray(wanted.classes))
    np.testing.assert_allclose(found.scores, np.asarray(wanted.scores), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.boxes, np.asarray(wanted.boxes), rtol=1e-4, atol=1e-3)
    return found


def with_drawn_statistics(detector):
    """Weights and statistics that no layer could be left out or exchanged with, close enough to real ones that they
    reach the outputs."""
    random = np.random.default_rng(0)
    for variable in detector.network.trainable_variables:
        values = np.asarray(variable)
        variable.assign(values + random.normal(size=values.shape) * (0.1 * values.std() if values.ndim > 1 else 0.05))
    norms = [layer for layer in detector.network._flatten_layers() if hasattr(layer, "moving_variance")]
    for layer in norms:
        layer.momentum = 0.0
    detector.network(detector.normalize(*map(keras.ops.convert_to_tensor, inputs(detector))), training=True)
    for layer in norms:
        for variable in (layer.moving_mean, layer.moving_variance):
            variable.assign(np.asarray(variable) * random.uniform(0.8, 1.2, variable.shape))
    return detector


@pytest.fixture(scope="module")
def small_d0():
    """At a size whose levels are no multiples of each other."""
    keras.utils.set_random_seed(0)
    hparams = hyperparameters_of("efficientdet-d0", {"image_size": "136x200"})
    return with_drawn_statistics(build_detector(hparams, num_classes=4, precision="float32"))


def inputs(detector, count=2):
    height, width = detector.config.image_size
    images = np.random.default_rng(1).integers(0, 256, (count, height, width, 3), np.uint8)
    return images, np.int32([[height, width], [height // 2, width - 5]])[:count]


def layer_by_layer(detector, images, sizes):
    """Class logits and box deltas, nothing folded."""
    pixels = detector.normalize(*map(keras.ops.convert_to_tensor, (images, sizes)))
    return [np.asarray(output) for output in detector.network(pixels, training=False)]


def test_folding_under_keras_changes_nothing_but_rounding(small_d0):
    images, sizes = inputs(small_d0)
    found = small_d0.outputs(*map(keras.ops.convert_to_tensor, (images, sizes)))
    for values, wanted in zip(found, layer_by_layer(small_d0, images, sizes), strict=True):
        assert wanted.std() > 0.01
        np.testing.assert_allclose(values, wanted, atol=2e-5 * np.abs(wanted).max())  # 1.1e-5 on a CPU of another kind


@pytest.mark.parametrize("for_onnxruntime", [False, True])
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_outputs_are_those_of_the_network(small_d0, runtime, for_onnxruntime):
    """Either form of the file in either runtime."""
    images, sizes = inputs(small_d0)
    wanted = layer_by_layer(small_d0, images, sizes)
    model = onnx_model(small_d0, for_onnxruntime=for_onnxruntime)
    images = Network(model.SerializeToString(), runtime=runtime)(images, sizes, copied)
    assert np.abs(wanted[0][0] - wanted[0][1]).max() > 0.1  # the image reaches the outputs
    for image, found in enumerate(images):
        for values, output in zip(found, (*wanted, wanted[0].max(axis=-1)), strict=True):
            assert output[image].std() > 0.01
            np.testing.assert_allclose(values, output[image], atol=2e-5 * np.abs(output).max())


def test_a_network_whose_images_are_normalized_twice(small_d0):
    twice = miniature_detector()
    twice.config = replace(twice.config, normalizations=2)
    images, sizes = inputs(twice)
    wanted = layer_by_layer(twice, images, sizes)
    for image, found in enumerate(exported_network(twice, runtime="onnxruntime")(images, sizes, copied)):
        np.testing.assert_allclose(found.class_logits, wanted[0][image], rtol=1e-4, atol=1e-4)


def test_detections_in_original_pixels_are_the_same():
    """Of the same outputs: where the networks differ in the last bit, near-equal scores change places."""
    detector = miniature_detector()
    images, sizes = inputs(detector)
    scales = np.float32([[1.0, 1.0], [2.5, 3.0]])
    wanted = build_predict(detector, compiled=False)(images, sizes, scales)
    logits, deltas = (
        np.asarray(output) for output in detector.outputs(*map(keras.ops.convert_to_tensor, (images, sizes)))
    )

    def network(images, sizes, read):
        return list(map(read, map(NetworkOutputs, logits, deltas, logits.max(axis=-1)), sizes))

    found = host_predictor(detector, network)(images, sizes, scales)
    assert np.asarray(wanted.valid).any(axis=1).all()
    for ours, theirs in zip(found[:4], wanted[:4], strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("cores", [1, 3])
def test_images_side_by_side_are_those_one_after_the_other(small_d0, runtime, cores):
    height, width = small_d0.config.image_size
    images = np.random.default_rng(3).integers(0, 256, (5, height, width, 3), np.uint8)
    sizes = np.int32([[height, width - 20 * i] for i in range(5)])
    network = Network(onnx_model(small_d0).SerializeToString(), runtime=runtime, cores=cores)
    alone = [network(images[i : i + 1], sizes[i : i + 1], copied)[0] for i in range(5)]
    assert np.ptp([outputs.class_logits for outputs in alone], axis=0).max() > 0.01
    for one, other in zip(network(np.asfortranarray(images), sizes, copied), alone, strict=True):
        np.testing.assert_allclose(one.class_logits, other.class_logits, rtol=1e-4, atol=1e-4)


def test_convolutions_in_8_bits_are_near_those_in_32(small_d0, tmp_path):
    """In each runtime. Drawn weights are no trained ones: forty layers on, their rounding is a few per cent."""
    height, width = small_d0.config.image_size
    random = np.random.default_rng(4)
    for number in range(3):
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / f"{number}.png")
    model = onnx_model(small_d0)
    images = calibration_of_files(sorted(map(str, tmp_path.iterdir())))
    in_8_bits = quantized(model, images.inputs(letterbox((height, width))), narrow=sums_of_bytes_saturate())
    kernels = [values for values in in_8_bits.graph.initializer if len(values.dims) == 4 and values.dims[0] > 1]
    assert {TensorProto.INT8} == {values.data_type for values in kernels}
    images, sizes = inputs(small_d0)
    [exact] = Network(model.SerializeToString(), runtime="openvino")(images[:1], sizes[:1], copied)
    for runtime in RUNTIMES:
        [found] = Network(in_8_bits.SerializeToString(), runtime=runtime)(images[:1], sizes[:1], copied)
        for values, wanted in zip(found, exact, strict=True):
            assert 0.9 < np.corrcoef(values.ravel(), wanted.ravel())[0, 1] < 0.99999


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_callers_in_several_threads_get_their_own_outputs(tmp_path, runtime):
    """Each thread has images of its own gray, which the scores of this network tell."""
    network = Network(write_color_artifact(tmp_path / "color.onnx").read_bytes(), runtime=runtime)
    grays = np.uint8([60, 120, 180, 240])

    def scores_of(gray):
        image = np.full((1, SIDE, SIDE, 3), gray, np.uint8)
        return [
            network(image, np.int32([[SIDE, SIDE]]), lambda outputs, _: outputs[1][0].item())[0] for _ in range(300)
        ]

    with ThreadPoolExecutor(len(grays)) as threads:
        for gray, scores in zip(grays, threads.map(scores_of, grays), strict=True):
            np.testing.assert_allclose(scores, gray / 255, atol=1e-3)


@pytest.mark.parametrize(("count", "most"), [(3, 100), (100, 100), (101, 100), (250, 100), (65, 64)])
def test_as_many_images_as_asked_for_are_chosen(count, most):
    names = calibration_of_files([f"{number:03}" for number in range(count)], most=most).names
    assert (len({*names}), names[0]) == (min(count, most), "000")
    steps = np.diff(np.int32(names))
    assert steps.max() - steps.min() <= 1


def test_an_error_in_reading_is_the_callers(small_d0):
    images, sizes = inputs(small_d0)
    network = exported_network(small_d0, runtime="onnxruntime")
    with pytest.raises(ZeroDivisionError):
        network(images, sizes, lambda outputs, size: 1 / 0)
    assert len(network(images, sizes, copied)) == 2


# --- candidates and suppression on the host


@pytest.mark.parametrize("spread", [0.01, 3.0])  # so alike that all candidates must take part; some that stand out
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"per_class": False},
        {"method": "hard"},
        {"method": "hard", "per_class": False},
        {"score_threshold": 0.3},
        {"candidates": 40},
        {"max_detections": 7, "candidates": 900},
    ],
)
def test_the_host_finds_what_the_device_finds(options, spread):
    random = np.random.default_rng(2)
    anchors = drawn_anchors(random, 700)
    logits = np.float32(random.normal(-1, spread, (2, 700, 5)))
    logits[:, ::7] = logits[:, 1::7]  # ties
    deltas = np.float32(random.normal(0, 0.3, (2, 700, 4)))
    assert_the_host_finds_the_same(logits, deltas, anchors, **{"candidates": 1500, "max_detections": 50, **options})


EVERY_CANDIDATE = {"method": "hard", "iou_threshold": 1.0, "candidates": 310, "max_detections": 310}


@pytest.mark.parametrize("options", [{"candidates": 2000, "max_detections": 30}, EVERY_CANDIDATE])
@pytest.mark.parametrize("spread", [0.0, 0.001])
@pytest.mark.parametrize("per_anchor", [0.0, 1.0])
def test_classes_that_score_alike(per_anchor, spread, options):
    """As a network that has learned nothing, or where objects are but not which: few anchors have all candidates."""
    random = np.random.default_rng(3)
    anchors = drawn_anchors(random, 2500)
    logits = np.float32(random.normal(-2, per_anchor, (1, 2500, 1)) + random.normal(0, spread, (1, 2500, 20)))
    deltas = np.float32(random.normal(0, 0.3, (1, 2500, 4)))
    assert assert_the_host_finds_the_same(logits, deltas, anchors, **options).valid.all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["hard", "gaussian"])
def test_boxes_whose_areas_are_infinite_are_those_of_the_graph(method):
    """Outputs of a detector that diverged in a training: sides of 1e33 pixels, infinite ones, no width."""
    random = np.random.default_rng(4)
    corner = random.uniform(0, 90, (300, 2))
    anchors = np.float32(np.concatenate([corner, corner + 20], axis=1))
    logits = np.float32(random.normal(0, 1, (1, 300, 3)))
    deltas = np.float32(random.normal(0, 0.3, (1, 300, 4)))
    deltas[0, ::2, 2:] = 70
    deltas[0, ::5, 2:] = 100, -200
    assert_the_host_finds_the_same(logits, deltas, anchors, method=method, candidates=600, max_detections=50)


def test_names_in_a_users_file_are_shown_escaped(monkeypatch):
    """Runtimes tell of a node by its name, which may hold what a terminal would obey."""

    def refuse(*_):
        raise RuntimeError("node 'evil\x1b]0;title\x07\u202e' is of no type")

    monkeypatch.setitem(runtimes._RUNTIMES, "onnxruntime", refuse)
    network = Network(b"", runtime="onnxruntime", path="a.onnx")
    with pytest.raises(InputError) as caught:
        network(np.zeros((1, 8, 8, 3), np.uint8), np.int32([[8, 8]]), copied)
    assert str(caught.value) == (
        r"a.onnx: onnxruntime cannot open it (node 'evil\x1b]0;title\x07\u202e' is of no type); is the file complete?"
    )
