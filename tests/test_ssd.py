"""SSD300-ResNet34 against MLPerf's reference: the network with weights by recipe, and how its weights are named."""

from functools import lru_cache

import keras
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from oracles import to_numpy
from torch_recipe import named_shapes, recipe_weights

from dataset.class_names import COCO_2017, ClassNames
from dataset.input.resize import stretch
from efficientdet.checkpoints.restore import Source, load_backbone, load_matching_weights
from efficientdet.families.inputs import input_config
from efficientdet.families.registry import build_detector, family_of, hyperparameters_of
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.inference.runtimes import Network, copied
from efficientdet.optimization.optimizer import Schedule
from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.model import onnx_model
from efficientdet.plugins.ssd.network import build_ssd
from efficientdet.plugins.ssd.overlap_crop import ColorJitter, OverlapCrop
from model.detection_model import named_variables
from object_detection.onnx_nodes import not_suppressed
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import suppress
from program_support.errors import InputError

MODEL = "ssd300-resnet34"
FAMILY = family_of(MODEL)
YX = [1, 0, 3, 2]


@lru_cache
def reference_weights(golden_folder):
    return recipe_weights(named_shapes(golden_folder, "mlcommons_ssd300_resnet34"), 120)


@pytest.fixture(scope="module")
def detector(golden_folder):
    source = Source("recipe", reference_weights(golden_folder), None)
    with keras.StatelessScope():  # draws no values that the weights replace
        made = build_detector(hyperparameters_of(MODEL, {}), num_classes=80)
        told = load_matching_weights(made.network, source, family=FAMILY, class_names=COCO_2017)
    assert told == [f"all {len(named_variables(made.network))} weights from recipe"]
    return made


def test_the_published_forward_pass(golden_folder, detector):
    golden = np.load(golden_folder / "families" / "ssd_forward.npz")
    images, sizes = golden["images"], np.int32([[300, 300]])
    np.testing.assert_allclose(
        detector.normalize(images, sizes)[0], golden["network_input"][0].transpose(1, 2, 0), atol=1e-5
    )
    outputs = to_numpy(detector.outputs(images, sizes))
    np.testing.assert_allclose(outputs[0].transpose(0, 2, 1), golden["plabel"], atol=1e-4)
    np.testing.assert_allclose(outputs[1][..., YX].transpose(0, 2, 1), golden["ploc"], atol=1e-4)
    check_detections(
        build_predict(detector, compiled=False)(images, sizes, np.ones((1, 2), np.float32)), golden, clipped=True
    )


def check_detections(found, golden, *, clipped=False):
    """The reference has the best last, fractions for pixels, and the background as class 0."""
    found, backwards = to_numpy(found), slice(None, None, -1)
    assert found.valid[0].all()
    np.testing.assert_array_equal(found.classes[0] + 1, golden["labels0"][backwards])
    np.testing.assert_allclose(found.scores[0], golden["scores0"][backwards], atol=1e-5)
    boxes = golden["boxes0"][backwards]
    np.testing.assert_allclose(found.boxes[0][:, YX] / 300, boxes.clip(0, 1) if clipped else boxes, atol=1e-4)


def test_its_exported_file_finds_the_same(golden_folder, detector):
    golden = np.load(golden_folder / "families" / "ssd_forward.npz")
    network = Network(onnx_model(detector, for_onnxruntime=True).SerializeToString(), runtime="onnxruntime")
    [outputs] = network(golden["images"], np.int32([[300, 300]]), copied)
    found = detector.postprocessing.detections_on_host(outputs, np.int32([300, 300]))
    check_detections(type(found)(*(None if values is None else values[None] for values in found)), golden)


def test_an_overlap_of_exactly_the_threshold_is_dropped(detector):
    """As by the reference, wherever suppression runs. Of B and C, A overlaps B by 0.5 and C by a little less."""
    config, scores = detector.config.suppression, np.float32([0.9, 0.8, 0.7])
    boxes = np.float32([[0, 0, 10, 10], [0, 0, 10, 20], [0, 0, 10, 20.01]])
    stays = np.float32([0.9, 0.7])
    by_keras = to_numpy(suppress(boxes[None], scores[None], np.int32([[0, 0, 0]]), config=config))
    np.testing.assert_array_equal(by_keras.scores[by_keras.valid], stays)
    logits = np.stack([np.log(1 - scores), np.log(scores)], axis=1)
    on_host = detections_on_host(NetworkOutputs(logits, np.zeros_like(boxes), logits.max(axis=1)), boxes, config=config)
    np.testing.assert_allclose(on_host.scores[on_host.valid], stays, rtol=1e-5)
    graph = OnnxGraph()
    kept = not_suppressed(graph, boxes[None], scores[None, None], iou_threshold=config.iou_threshold)
    nodes = graph.nodes([kept])
    output = helper.make_tensor_value_info(kept, TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph(nodes, "test", [], [output], graph.initializers(nodes)),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 18)],
    )
    [found] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {})
    np.testing.assert_array_equal(found, [[1, 0, 1]])


# --- weights of others


def test_names_are_the_references(golden_folder, detector):
    """A predictor's channels: value, then box; offsets y before x."""
    theirs = reference_weights(golden_folder)
    ours = {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}
    assert len(ours) == len(theirs)
    np.testing.assert_array_equal(
        ours["backbone/layer3/0/downsample/0/kernel"][0, 0].T, theirs["model.layer2.0.0.downsample.0.weight"][..., 0, 0]
    )
    np.testing.assert_array_equal(ours["conf/1/bias"], theirs["conf.1.bias"])
    np.testing.assert_array_equal(ours["loc/1/bias"], theirs["loc.1.bias"].reshape(4, 6)[YX].ravel())


def test_backbone_of_a_classifier(golden_folder):
    made = build_detector(hyperparameters_of(MODEL, {}), num_classes=3)
    weights = recipe_weights(named_shapes(golden_folder, "torchvision_resnet34"), 102)
    [told] = load_backbone(made.network, Source("resnet34-b627a593.pth", weights, None), family=FAMILY)
    named = named_variables(made.network)
    assert told == f"{sum(map(FAMILY.is_backbone, named))} backbone weights from resnet34-b627a593.pth"
    np.testing.assert_array_equal(
        named["backbone/layer3/5/bn2/moving_variance"].value, weights["layer3.5.bn2.running_var"]
    )
    assert FAMILY.imagenet_backbone(hyperparameters_of(MODEL, {})) == "resnet34-333f7ec4.pth"  # MLPerf's reference
    assert FAMILY.imagenet_backbone(hyperparameters_of(MODEL, {"backbone_name": "resnet18"})) == "resnet18-f37072fd.pth"


def test_other_classes_start_anew(golden_folder):
    made = build_detector(hyperparameters_of(MODEL, {}), num_classes=3)
    _, told = load_matching_weights(
        made.network,
        Source("recipe", reference_weights(golden_folder), None),
        family=FAMILY,
        class_names=ClassNames((1, 2, 3), ("a", "b", "c")),
    )
    assert told.startswith("conf/0, conf/1, conf/2, conf/3, conf/4, conf/5 starts from scratch")


def test_rows_of_classes(detector):
    """Of each box the background and the classes asked for."""
    arrays = {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}
    assert FAMILY.count_classes(arrays, {}) == 80
    fewer = FAMILY.with_class_rows(arrays, [7, 2], {})
    assert FAMILY.count_classes(fewer, {}) == 2
    for number, boxes in ((0, 4), (2, 6)):
        kernel, whole = fewer[f"conf/{number}/kernel"], arrays[f"conf/{number}/kernel"]
        for place, row in enumerate((0, 8, 3)):
            np.testing.assert_array_equal(
                kernel[..., place * boxes : (place + 1) * boxes], whole[..., row * boxes : (row + 1) * boxes]
            )
    assert fewer["loc/0/kernel"] is arrays["loc/0/kernel"]


# --- the network


@pytest.mark.parametrize("image_size", ["256x300", "300x256", "64x64"])
def test_images_too_small_for_the_last_map_are_refused(image_size):
    width, height = image_size.split("x")
    with pytest.raises(InputError, match=f"^image_size is {height} x {width}; expected at least 257 pixels per side"):
        hyperparameters_of(MODEL, {"image_size": image_size})


def test_it_starts_as_the_reference_does():
    """Glorot's bound of kernels, torch's of biases."""
    named = named_variables(build_ssd((300, 300), num_classes=80))
    for name, fan_in, fan_out in (
        ("loc/0", 9 * 256, 9 * 16),
        ("conf/1", 9 * 512, 9 * 486),
        ("additional_blocks/0/0", 256, 256),
        ("additional_blocks/3/2", 9 * 128, 9 * 256),
    ):
        kernel, bias = (np.abs(np.asarray(named[f"{name}/{role}"].value)) for role in ("kernel", "bias"))
        assert 0.98 < kernel.max() / np.sqrt(6 / (fan_in + fan_out)) <= 1 + 1e-6  # rounded to float32
        assert 0.7 < bias.max() / fan_in**-0.5 <= 1 + 1e-6


# --- the recipe


def test_rates_are_the_published_ones():
    """2.5e-3 for 32 images; from 0 in 300 steps at 1,024 images of COCO; a tenth from epochs 40 and 50 on."""
    hparams = hyperparameters_of(MODEL, {})
    steps_per_epoch = -(-117266 // 1024)
    assert pytest.approx(0.08) == hparams.RATE_PER_64 / 64 * 1024
    rate = Schedule.from_hyperparameters(hparams, peak_learning_rate=0.08, steps_per_epoch=steps_per_epoch)
    assert rate.warmup_steps == pytest.approx(300, abs=2)
    assert rate(0) == 0
    assert rate(150) == pytest.approx(0.08 * 150 / rate.warmup_steps)
    assert [
        rate(epoch * steps_per_epoch + step) for epoch, step in ((40, -1), (40, 0), (50, -1), (50, 0), (69, 0))
    ] == pytest.approx([0.08, 0.008, 0.008, 0.0008, 0.0008])


@pytest.mark.parametrize("decayed", ["all", "kernels"])
def test_weights_that_decay(decayed):
    made = build_detector(
        hyperparameters_of(MODEL, {"decayed_weights": decayed, "backbone_name": "resnet18"}), num_classes=1
    )
    weights = {name: np.asarray(variable.value) for name, variable in named_variables(made.network).items()}
    found = float(made.regularization()["reg_l2_loss"])
    wanted = sum(
        (array.astype(np.float64) ** 2).sum()
        for name, array in weights.items()
        if name.endswith("kernel") or (decayed == "all" and name.endswith(("gamma", "beta", "bias")))
    )
    assert found == pytest.approx(5e-4 / 2 * wanted, rel=1e-5)


def test_the_input_is_the_published_one():
    hparams = hyperparameters_of(MODEL, {"num_cropping_iterations": 50})
    assert FAMILY.resize_rule(hparams) == stretch((300, 300), antialias=True)
    assert FAMILY.augmentation(hparams) == OverlapCrop(
        (300, 300),
        tries=50,
        flip_probability=0.5,
    )
    assert hparams.train_on_crowds
    jitter = ColorJitter(brightness=0.125, contrast=0.5, saturation=0.5, hue=0.05)
    for model, expected in ((MODEL, jitter), ("efficientdet-d0", None)):
        config = input_config(hyperparameters_of(model, {}), class_names=COCO_2017, batch_size=1)
        assert config.augmentation.color_jitter == expected
