import dataclasses

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import TESTDATA, to_numpy

from efficientdet.plugins.mask_rcnn.presets import proposal_sizes
from efficientdet.plugins.ssd.default_boxes import ssd300_levels
from object_detection.assignment.anchor_assignment import IouAssigner, assign_anchors
from object_detection.assignment.anchor_candidates import candidate_windows
from object_detection.geometry.anchor_grid import (
    RETINANET_SIZES,
    AnchorConfig,
    AnchorGrid,
    anchor_grid,
    feature_sizes,
    grid_of_levels,
    rounded_levels,
)
from object_detection.geometry.box_coding import PLAIN_BOX_CODER, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.structures import Objects

YX = [1, 0, 3, 2]  # from x, y, x, y or dx, dy, dw, dh, and back
WEIGHTED = FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0))


def alone(boxes):
    """Anchors of which no two stand on one lattice."""
    boxes = np.float32(boxes)
    columns, ones = (boxes[:, :2].T + boxes[:, 2:].T) / 2, np.ones((2, len(boxes)), np.int32)
    return AnchorGrid(
        boxes=boxes,
        level_sizes=(len(boxes),),
        centers=columns,
        strides=np.float32(ones),
        sides=boxes[:, 2:].T - boxes[:, :2].T,
        counts=ones,
        first=np.arange(len(boxes), dtype=np.int32),
        steps=ones,
    )


ANCHORS = alone([[0, 0, 10, 10], [0, 0, 10, 20], [20, 20, 30, 30], [40, 40, 50, 50]])
GRIDS = {
    "D0": anchor_grid(AnchorConfig(), (512, 512)),
    "uneven": anchor_grid(AnchorConfig(min_level=2, num_scales=2, aspect_ratios=((1, 1), (3, 0.2))), (100, 75)),
    "with gaps": anchor_grid(AnchorConfig(num_scales=2, anchor_scale=0.45), (128, 128)),
    "one cell": anchor_grid(AnchorConfig(), (1, 1)),
    "RetinaNet's": grid_of_levels(rounded_levels((128, 160), feature_sizes((128, 160), 7)[3:], sizes=RETINANET_SIZES)),
    "proposals'": grid_of_levels(rounded_levels((100, 75), feature_sizes((100, 75), 6)[2:], sizes=proposal_sizes())),
    "SSD300's": grid_of_levels(ssd300_levels()),
}


def objects_of(*images):
    """Each image a list of (box, class, valid, crowd)."""
    boxes, classes, valid, crowd = (np.array([[entry[i] for entry in image] for image in images]) for i in range(4))
    return Objects.of_boxes(boxes.astype(np.float32), classes.astype(np.int32), valid.astype(bool), crowd.astype(bool))


def assigned(objects, grid=ANCHORS, **settings):
    return to_numpy(assign_anchors(objects, grid, **settings))


def test_overlap_and_force_by_hand():
    targets = assigned(
        objects_of(
            [
                ((0, 0, 10, 12), 5, True, False),  # IoU 10/12 with anchor 0, 12/20 with anchor 1
                ((28, 28, 38, 38), 6, True, False),  # IoU 4/196 with anchor 2: forced
                ((70, 70, 80, 80), 7, True, False),  # touches no anchor
            ]
        )
    )
    np.testing.assert_array_equal(targets.positive, [[True, True, True, False]])
    np.testing.assert_array_equal(targets.classes, [[5, 5, 6, 0]])
    wanted = [[0, 0.1, 0, np.log(1.2)], [0, -0.2, 0, np.log(0.6)], [0.8, 0.8, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(targets.box_deltas[0], wanted, atol=1e-6)
    assert not targets.ignored.any()


def test_crowds_and_padding_are_nobodys_target():
    nothing = np.zeros((1, 4), bool)
    for entry in [
        ((0, 0, 10, 10), 2, False, False),
        ((0, 0, 10, 10), 2, True, True),
        ((0, 0, 0, 0), 0, False, False),
        ((5, 5, 5, 9), 2, True, False),
        ((100, 100, 110, 110), 2, True, False),
    ]:
        targets = assigned(objects_of([entry]))
        np.testing.assert_array_equal(targets.positive, nothing)
        assert not targets.classes.any()
        assert not targets.box_deltas.any()
        assert np.isfinite(targets.box_deltas).all()


@pytest.mark.parametrize("case", ["aligned", "dup", "few", "many", "one", "tiny"])
def test_the_published_assignment(case):
    golden = np.load(TESTDATA / f"targets_{case}.npz")
    count = len(golden["gt_boxes"])
    padded = count + 3
    objects = Objects.of_boxes(
        np.zeros((1, padded, 4), np.float32),
        np.zeros((1, padded), np.int32),
        np.arange(padded)[None] < count,
        np.zeros((1, padded), bool),
    )
    objects.boxes[0, :count] = golden["gt_boxes"]
    objects.classes[0, :count] = golden["gt_classes"] - 1
    targets = assigned(objects, GRIDS["D0"])
    np.testing.assert_array_equal(np.where(targets.positive[0], targets.classes[0], -1), golden["cls_targets"])
    np.testing.assert_allclose(targets.box_deltas[0], golden["box_targets"], atol=1e-6)
    assert targets.positive.sum() == golden["num_positives"]


# --- to the last bit what all overlaps of all objects say


def drawn_boxes(rng, kind, *, grid, slots):
    """[3, slots, 4] of one kind; drawn where the anchors are, cut to the image but for "outside"."""
    low, high = grid.boxes[:, :2].min(), grid.boxes[:, 2:].max()
    centers = rng.uniform(0, high + low, (3, slots, 2))
    sides = np.exp(rng.uniform(np.log(2), np.log(high), (3, slots, 2)))
    if kind == "thin":
        sides[..., 0] = 10.0 ** rng.uniform(-6, 0, (3, slots))
    elif kind == "tiny":
        sides = 10.0 ** rng.uniform(-5, 0.5, (3, slots, 2))
    elif kind == "huge":
        sides *= 1000
    boxes = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
    if kind == "anchors":
        boxes = grid.boxes[rng.integers(0, len(grid.boxes), (3, slots))]
    elif kind == "outside":
        boxes = boxes + rng.choice([-1.0, 1.0], (3, slots, 1)) * high
    elif kind == "odd":
        boxes[0], boxes[1, ::2], boxes[1, 1::2], boxes[2] = boxes[0][:, [2, 3, 0, 1]], np.nan, np.inf, 3e38
        boxes[2, :, :2] = 0
    else:
        boxes = np.clip(boxes, 0, high + low)
    if kind == "whole pixels":
        boxes = np.round(boxes / 4) * 4
    return boxes.astype(np.float32)


def drawn_objects(rng, kind, *, grid, slots=12):
    boxes = drawn_boxes(rng, kind, grid=grid, slots=slots)
    boxes[:, 1::4] = boxes[:, ::4]  # the same box twice, of another class
    objects = Objects.of_boxes(
        boxes,
        rng.integers(1, 90, (3, slots)).astype(np.int32),
        rng.random((3, slots)) < 0.8,
        rng.random((3, slots)) < 0.15,
    )
    objects.valid[2, slots // 3 :] = False
    return objects


KINDS = ("boxes", "whole pixels", "anchors", "thin", "tiny", "huge", "outside", "odd")


def objects_of_kinds(kinds, *, grid):
    """Return one batch with three images of each kind."""
    batches = [drawn_objects(np.random.default_rng(number), kind, grid=grid) for number, kind in enumerate(kinds)]
    return Objects(*map(np.concatenate, zip(*batches, strict=True)))


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_the_same_bits_as_by_all_overlaps(name):
    grid = GRIDS[name]
    objects = objects_of_kinds(KINDS, grid=grid)
    for positive_iou in (0.5, 0.2):
        wanted = to_numpy(oracles.dense_assignment(objects, grid.boxes, positive_iou=positive_iou))
        found = assigned(objects, grid, positive_iou=positive_iou)
        for field in ("positive", "classes", "ignored"):
            np.testing.assert_array_equal(
                getattr(found, field), getattr(wanted, field), err_msg=f"{field} at {positive_iou}"
            )
        np.testing.assert_array_equal(found.box_deltas[..., :2], wanted.box_deltas[..., :2])
        # TensorFlow's logarithm of the last few entries of a tensor is another function than of those before.
        np.testing.assert_array_max_ulp(found.box_deltas[..., 2:], wanted.box_deltas[..., 2:], maxulp=2)


def test_more_candidates_than_one_turn_takes():
    """A line one pixel high and as wide as the image overlaps hundreds of anchors equally; the first is requested."""
    line = ((100, 0, 101, 512), 7, True, False)
    windows = candidate_windows(np.float32([line[0]]), np.array([True]), GRIDS["D0"], positive_iou=0.5)
    assert np.prod(windows.counts, axis=1).sum() > 64
    targets = assigned(objects_of([line]), GRIDS["D0"])
    overlap = to_numpy(pairwise_iou(np.float32([line[0]]), GRIDS["D0"].boxes))[0]
    assert np.flatnonzero(targets.positive[0]).tolist() == [overlap.argmax()]


# --- by other rules

RULES = {
    "RetinaNet's": IouAssigner(negative_iou=0.4, claim="ties"),
    "proposals'": IouAssigner(positive_iou=0.7, negative_iou=0.3, claim="ties"),
    "ties without a band": IouAssigner(claim="ties"),
    "SSD300's": IouAssigner(claim="best, last", strictly=True),
    "EfficientDet's with a band": IouAssigner(negative_iou=0.1),
}


def check_against_all_overlaps(objects, grid, rule):
    """Returns how many anchors learn an object and how many are between."""
    targets = assigned(objects, grid, rule=rule, box_coder=WEIGHTED)
    for image in range(len(objects.boxes)):
        learnable = np.flatnonzero(objects.valid[image] & ~objects.crowd[image])
        boxes = objects.boxes[image][learnable]
        matched, between = oracles.match(
            boxes,
            grid.boxes,
            positive_iou=rule.positive_iou,
            negative_iou=rule.negative_iou,
            claim=rule.claim,
            strictly=rule.strictly,
        )
        positive = np.flatnonzero(matched >= 0)
        np.testing.assert_array_equal(np.flatnonzero(targets.positive[image]), positive)
        np.testing.assert_array_equal(targets.ignored[image], between)
        np.testing.assert_array_equal(
            targets.classes[image][positive], objects.classes[image][learnable][matched[positive]]
        )
        wanted = to_numpy(WEIGHTED.encode(boxes[matched[positive]], grid.boxes[positive]))
        np.testing.assert_allclose(targets.box_deltas[image][positive], wanted, rtol=1e-5, atol=1e-5)
        negative = ~targets.positive[image]
        assert not targets.box_deltas[image][negative].any()
        assert not targets.classes[image][negative].any()
    return targets.positive.sum(), targets.ignored.sum()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["uneven", "with gaps", "SSD300's"])
def test_every_rule_finds_what_all_overlaps_say(rule, name):
    objects = objects_of_kinds(KINDS[:-1], grid=GRIDS[name])
    positive, between = check_against_all_overlaps(objects, GRIDS[name], RULES[rule])
    assert positive > 40
    assert (between > 0) == (RULES[rule].negative_iou is not None)


@pytest.mark.parametrize(("strictly", "wanted"), [(False, [True, True]), (True, [True, False])])
def test_the_threshold_itself(strictly, wanted):
    grid = alone([[0, 0, 10, 10], [0, 0, 10, 20]])
    targets = assigned(objects_of([((0, 0, 10, 10), 1, True, False)]), grid, rule=IouAssigner(strictly=strictly))
    assert targets.positive.tolist() == [wanted]  # IoU 1 and 0.5
    between = assigned(
        objects_of([((0, 0, 10, 10), 1, True, False)]), grid, rule=IouAssigner(positive_iou=0.6, negative_iou=0.5)
    )
    assert between.ignored.tolist() == [[False, True]]


def golden_objects(boxes, labels=None):
    """Of one image, xyxy pixels to yxyx; one padded slot."""
    count = len(boxes)
    classes = np.zeros((1, count + 1), np.int32)
    classes[0, :count] = 0 if labels is None else labels
    return Objects.of_boxes(
        np.concatenate([boxes[:, YX], np.zeros((1, 4))]).astype(np.float32)[None],
        classes,
        np.arange(count + 1)[None] < count,
        np.zeros((1, count + 1), bool),
    )


CASES = ("one", "few", "many", "tiny", "dup", "aligned", "none")


@pytest.mark.parametrize("case", CASES)
def test_the_published_matching_of_retinanet(golden_folder, case):
    golden = np.load(golden_folder / "families" / "retinanet_matcher.npz")
    grid = grid_of_levels(rounded_levels((256, 320), feature_sizes((256, 320), 7)[3:], sizes=RETINANET_SIZES))
    targets = assigned(
        golden_objects(golden[f"{case}_boxes"], golden[f"{case}_labels"]), grid, rule=RULES["RetinaNet's"]
    )
    matched = golden[f"{case}_matched"]
    np.testing.assert_array_equal(targets.positive[0], matched >= 0)
    np.testing.assert_array_equal(targets.ignored[0], matched == -2)
    positive = matched >= 0
    np.testing.assert_array_equal(targets.classes[0][positive], golden[f"{case}_labels"][matched[positive]])
    np.testing.assert_allclose(
        targets.box_deltas[0][positive][:, YX], golden[f"{case}_targets_of_positives"], atol=1e-5
    )


@pytest.mark.parametrize("case", CASES)
def test_the_published_matching_of_proposals(golden_folder, case):
    golden = np.load(golden_folder / "families" / "maskrcnn_rpn_matcher.npz")
    grid = grid_of_levels(rounded_levels((192, 256), feature_sizes((192, 256), 6)[2:], sizes=proposal_sizes()))
    targets = assigned(golden_objects(golden[f"{case}_boxes"]), grid, rule=RULES["proposals'"])
    found = np.where(targets.positive[0], 1, np.where(targets.ignored[0], -1, 0))
    np.testing.assert_array_equal(found, golden[f"{case}_labels"])
    np.testing.assert_allclose(
        targets.box_deltas[0][targets.positive[0]][:, YX], golden[f"{case}_targets_of_positives"], atol=1e-5
    )


SSD_CASES = ("one", "few", "many", "tiny", "dup", "aligned", "small")


@pytest.mark.parametrize("case", SSD_CASES)
def test_the_published_matching_of_ssd300(golden_folder, case):
    """In the reference's unit, fractions of the image: its rounding decides which of several equal overlaps is best."""
    golden, defaults = (np.load(golden_folder / "families" / f"ssd_{name}.npz") for name in ("encode", "default_boxes"))
    grid = GRIDS["SSD300's"]
    grid = dataclasses.replace(
        grid,
        boxes=defaults["ltrb"][:, YX],
        **{name: getattr(grid, name) / np.float32(300) for name in ("centers", "strides", "sides")},
    )
    targets = assigned(golden_objects(golden[f"{case}_boxes"], golden[f"{case}_labels"]), grid, rule=RULES["SSD300's"])
    np.testing.assert_array_equal(targets.classes[0], golden[f"{case}_labels_out"])
    positive = targets.positive[0]
    decoded = to_numpy(PLAIN_BOX_CODER.decode(targets.box_deltas[0][positive], grid.boxes[positive]))[:, YX]
    centers, sides = (decoded[:, :2] + decoded[:, 2:]) / 2, decoded[:, 2:] - decoded[:, :2]
    np.testing.assert_allclose(
        np.concatenate([centers, sides], axis=1), golden[f"{case}_boxes_out"][positive], atol=1e-6
    )


# --- without all of them


def largest_tensor(graph):
    """Elements, in the program and the bodies of its loops."""
    bodies = [graph.as_graph_def(add_shapes=True), *graph.as_graph_def(add_shapes=True).library.function]
    nodes = [node for body in bodies for node in (body.node_def if hasattr(body, "node_def") else body.node)]
    shapes = [
        shape for node in nodes if "_output_shapes" in node.attr for shape in node.attr["_output_shapes"].list.shape
    ]
    return max(np.prod([max(side.size, 1) for side in shape.dim], dtype=np.int64) for shape in shapes)


def test_no_tensor_has_an_entry_for_each_object_and_anchor():
    objects = drawn_objects(np.random.default_rng(0), "boxes", grid=GRIDS["D0"], slots=100)
    batch, anchors = 3, len(GRIDS["D0"])
    ways = (
        lambda objects: assign_anchors(objects, GRIDS["D0"]),
        lambda objects: oracles.dense_assignment(objects, GRIDS["D0"].boxes),
    )
    objects = tf.nest.map_structure(tf.constant, objects)
    largest = [largest_tensor(tf.function(way, autograph=False).get_concrete_function(objects).graph) for way in ways]
    assert largest == [batch * anchors * 4, batch * 100 * anchors]
