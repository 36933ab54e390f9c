"""Mask R-CNN as the registry builds it: each stage, the losses and the detections against torchvision's."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from torch_recipe import named_shapes, recipe_weights

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.restore import Source, load_weights
from efficientdet.families.registry import build_detector, family_of, hyperparameters_of
from efficientdet.inference.checkpoint_model import exported_network
from efficientdet.inference.runtimes import copied
from efficientdet.plugins.mask_rcnn.detector import FirstStage
from efficientdet.plugins.mask_rcnn.region_layers import MasksOfClasses
from efficientdet.plugins.mask_rcnn.sampled_regions import assign_regions, mask_targets
from model.batch_norm import BatchNormalization
from model.detection_model import losses, named_variables
from object_detection.structures import Objects

MODEL, CLASSES = "mask-rcnn-resnet50", 90
SIZE = (192, 256)
YX = [1, 0, 3, 2]
EVERYTHING = {"anchors_an_image": 20_000, "regions_an_image": 2004, "positive_regions": 1.0}


def detector_of(model=MODEL, *, classes=CLASSES, **overrides):
    return build_detector(hyperparameters_of(model, {"image_size": "256x192", **overrides}), num_classes=classes)


@pytest.fixture(scope="module")
def published(golden_folder):
    return with_published_weights(golden_folder)


def with_published_weights(golden_folder, **overrides):
    arrays = recipe_weights(named_shapes(golden_folder, "torchvision_maskrcnn_resnet50_fpn"), 130)
    names = ClassNames(tuple(range(1, CLASSES + 1)), tuple(f"class {number}" for number in range(CLASSES)))
    source = Source("maskrcnn.pth", arrays, None)
    with keras.StatelessScope():  # draws no values that the weights replace
        detector = detector_of(**overrides)
        load_weights(detector.network, source, family=family_of(MODEL), class_names=names)
    return detector


def test_torchvisions_coco_weights_bring_their_conventions(golden_folder):
    """Of 91 rows, which are category ids, the 80 are taken, with the background; batch norm has no epsilon."""
    newer = recipe_weights(named_shapes(golden_folder, "torchvision_maskrcnn_resnet50_fpn"), 1)
    names = golden_folder / "families" / "names" / "torchvision_maskrcnn_resnet50_fpn.checkpoint_aliases.json"
    aliases = json.loads(names.read_text())
    published = {old: newer[new] for old, new in aliases.items()} | {
        name: array for name, array in newer.items() if name not in aliases.values()
    }
    family, loaded = family_of(MODEL), []
    for arrays in (newer, published):
        source = Source("maskrcnn_resnet50_fpn_coco.pth", arrays, None)
        known = source.conventions(family)
        assert known == {"batch_norm_epsilon": 0.0, "resize": "fit", "image_size": 800}
        with keras.StatelessScope():
            detector = detector_of(classes=80, **{**known, "image_size": 64, "longer_side": 96})
            load_weights(detector.network, source, family=family, class_names=COCO_2017)
        loaded.append({name: np.asarray(value) for name, value in named_variables(detector.network).items()})
    assert detector.image_size == (96, 96)
    for name, array in loaded[0].items():
        np.testing.assert_array_equal(array, loaded[1][name])
    rows = [0, *COCO_2017.category_ids]
    for module, values in (
        ("box_predictor.cls_score", 1),
        ("box_predictor.bbox_pred", 4),
        ("mask_predictor.mask_fcn_logits", 1),
    ):
        wanted = newer[f"roi_heads.{module}.bias"].reshape(91, values)[rows]
        wanted = wanted[:, YX] if values == 4 else wanted
        np.testing.assert_array_equal(loaded[0][f"roi_heads/{module.replace('.', '/')}/bias"], wanted.ravel())
    assert {layer.epsilon for layer in detector.network.layers if isinstance(layer, BatchNormalization)} == {0.0}


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


def test_the_second_stage(golden_folder, published):
    golden = np.load(golden_folder / "families" / "maskrcnn_forward.npz")
    levels = published.first_stage(golden["network_input"].transpose(0, 2, 3, 1))[:4]
    proposals = golden["proposals"][None][..., YX]
    logits, deltas = map(np.asarray, published.heads.classes_and_deltas(levels, proposals))
    np.testing.assert_allclose(logits, golden["class_logits"], atol=1e-4)
    np.testing.assert_allclose(
        deltas.reshape(-1, CLASSES + 1, 4)[..., YX].reshape(deltas.shape), golden["box_regression"], atol=1e-4
    )
    boxes, scores = golden["boxes"][None][..., YX], golden["scores"][None]
    masks = np.asarray(published.heads.masks(levels, boxes, scores))
    np.testing.assert_allclose(masks[:2].transpose(0, 3, 1, 2), golden["mask_logits_first2"], atol=1e-4)
    own = keras.ops.sigmoid(masks[np.arange(100), ..., golden["labels"]])
    np.testing.assert_allclose(own, golden["mask_probabilities"], atol=1e-4)


def test_the_whole(golden_folder, published):
    """End to end, where near ties may be decided either way: nearly all detections and their masks match."""
    golden = np.load(golden_folder / "families" / "maskrcnn_forward.npz")
    images = golden["network_input"].transpose(0, 2, 3, 1)
    boxes, scores, classes, masks = (np.asarray(values)[0] for values in published.network([images, np.int32([SIZE])]))
    found = 0
    for box, score, label, mask in zip(
        golden["boxes"][:, YX], golden["scores"], golden["labels"], golden["mask_probabilities"], strict=True
    ):
        same = (np.abs(boxes - box).max(axis=1) < 2e-2) & (classes == label - 1)
        if same.any():
            [place] = np.flatnonzero(same)
            np.testing.assert_allclose(scores[place], score, atol=1e-5)
            np.testing.assert_allclose(masks[place], mask, atol=1e-3)
            found += 1
    assert found >= 99


SMALL = {"classes": 3, "image_size": "96x64", "candidates_per_level": 20, "proposals": 12}


@pytest.fixture(scope="module")
def small():
    """With random weights, that finds less than it has slots for."""
    keras.utils.set_random_seed(0)
    detector = detector_of("mask-rcnn-resnet18", **SMALL)
    predictor = detector.network.get_layer("roi_heads.box_predictor.cls_score")
    predictor.kernel.assign(10 * np.asarray(predictor.kernel))
    return detector


IMAGES = np.random.default_rng(0).integers(0, 255, (2, 64, 96, 3)).astype(np.uint8)
SIZES = np.int32([(64, 96), (40, 96)])


def test_masks_of_detections_alone_are_those_of_all(small):
    """TensorFlow on a CPU computes no mask of an empty slot, XLA all of them."""
    levels = small.first_stage(small.normalize(IMAGES, SIZES))[:4]
    boxes, scores, classes, wanted = map(np.asarray, small.outputs(IMAGES, SIZES))
    assert 0 < (scores > 0).sum() < 24

    def masks(levels, boxes, scores, classes):
        logits = small.heads.masks(levels, boxes, scores)
        return logits, MasksOfClasses()([logits, scores, classes])

    for compiled, rows in ((False, (scores > 0).sum()), (True, scores.size)):
        logits, found = tf.function(masks, jit_compile=compiled, autograph=False)(levels, boxes, scores, classes)
        assert len(logits) == rows
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert not wanted[scores == 0].any()
    assert (boxes[1, :, 2] <= 40).all()  # within its image


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("sizes", [SIZES, np.int32([(1, 1), (1, 1)])])
def test_an_exported_file_finds_the_same(small, runtime, sizes):
    """Also in images too small to find anything in."""
    wanted = [np.asarray(values) for values in small.outputs(IMAGES, sizes)]
    network = exported_network(small, runtime=runtime)
    found = network(IMAGES, sizes, copied)
    for image, outputs in enumerate(found):
        for ours, theirs in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs[image], atol=2e-3 if ours.shape[-1] == 4 else 1e-4)


def objects_of(golden, images, *, size):
    """Golden boxes, labels and masks of the whole image, whose frames are therefore the image."""
    slots = max(len(golden[f"gt_labels{image}"]) for image in range(images))
    boxes, classes = np.zeros((images, slots, 4), np.float32), np.zeros((images, slots), np.int32)
    valid, masks = np.zeros((images, slots), bool), np.zeros((images, slots, *size), np.uint8)
    for image in range(images):
        count = len(golden[f"gt_labels{image}"])
        boxes[image, :count], classes[image, :count] = (
            golden[f"gt_boxes{image}"][:, YX],
            golden[f"gt_labels{image}"] - 1,
        )
        masks[image, :count] = np.unpackbits(golden[f"gt_masks_bits{image}"], axis=-1)[..., : size[1]]
        valid[image, :count] = True
    return Objects.of_boxes(boxes, classes, valid, np.zeros_like(valid))._replace(masks=masks)


def test_the_published_losses(golden_folder):
    """The whole network in training, both samplers taking everything."""
    golden = np.load(golden_folder / "families" / "maskrcnn_train_losses.npz")
    detector = with_published_weights(golden_folder, **EVERYTHING)
    *levels, logits, deltas = detector.first_stage(golden["network_input"].transpose(0, 2, 3, 1), training=True)
    outputs = FirstStage(tuple(levels), logits, deltas, golden["image_sizes"])
    objects = objects_of(golden, 2, size=SIZE)
    targets = detector.targets(objects, outputs, np.int32([[0, 0], [0, 1]]))
    # Of the stored masks, which are those of the whole image and not cut to the boxes
    matched, _, _ = assign_regions(targets.regions, targets.valid, objects)
    whole = np.broadcast_to(np.float32([0, 0, *SIZE]), objects.boxes.shape)
    targets = targets._replace(
        masks=mask_targets(objects.masks, whole, targets.regions, matched, golden["image_sizes"])
    )
    found = losses(detector, outputs, targets, detector.counts(targets))
    assert np.asarray(targets.valid).sum(axis=1).tolist() == (golden["num_proposals"] + 4).tolist()
    for ours, theirs in {
        "objectness_loss": "objectness",
        "anchor_box_loss": "rpn_box_reg",
        "cls_loss": "classifier",
        "box_loss": "box_reg",
        "mask_loss": "mask",
    }.items():
        assert float(found[ours]) == pytest.approx(float(golden[f"loss_{theirs}"]), rel=1e-3), ours
