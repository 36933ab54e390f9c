import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import TESTDATA, to_numpy

from object_detection.anchor_candidates import candidate_windows
from object_detection.anchor_grid import AnchorConfig, AnchorGrid, anchor_grid
from object_detection.assignment import assign_anchors
from object_detection.box_geometry import pairwise_iou
from object_detection.structures import Objects


def alone(boxes):
    """Anchors of which no two stand on one lattice."""
    boxes = np.float32(boxes)
    columns, ones = (boxes[:, :2].T + boxes[:, 2:].T) / 2, np.ones((2, len(boxes)), np.int32)
    return AnchorGrid(boxes=boxes, centres=columns, strides=np.float32(ones), sides=boxes[:, 2:].T - boxes[:, :2].T,
                      counts=ones, first=np.arange(len(boxes), dtype=np.int32), steps=ones)


ANCHORS = alone([[0, 0, 10, 10], [0, 0, 10, 20], [20, 20, 30, 30], [40, 40, 50, 50]])
GRIDS = {
    "D0": anchor_grid(AnchorConfig(), (512, 512)),
    "320x448": anchor_grid(AnchorConfig(), (320, 448)),
    "D7": anchor_grid(AnchorConfig(anchor_scale=5.0), (256, 384)),
    "D7x": anchor_grid(AnchorConfig(max_level=8), (512, 512)),
    "NVIDIA's": anchor_grid(AnchorConfig(aspect_ratios=((1, 1), (1.4, 0.7), (0.7, 1.4))), (192, 256)),
    "uneven": anchor_grid(AnchorConfig(min_level=2, num_scales=2, aspect_ratios=((1, 1), (3, 0.2))), (100, 75)),
    "with gaps": anchor_grid(AnchorConfig(num_scales=2, anchor_scale=0.45), (128, 128)),
    "one cell": anchor_grid(AnchorConfig(), (1, 1)),
}


def objects_of(*images):
    """Each image a list of (box, class, valid, crowd)."""
    boxes, classes, valid, crowd = (np.array([[entry[i] for entry in image] for image in images]) for i in range(4))
    return Objects.of_boxes(boxes.astype(np.float32), classes.astype(np.int32), valid.astype(bool), crowd.astype(bool))


def assigned(objects, grid=ANCHORS, **settings):
    return to_numpy(assign_anchors(objects, grid, **settings))


def test_overlap_and_force_by_hand():
    targets = assigned(objects_of([
        ((0, 0, 10, 12), 5, True, False),  # IoU 10/12 with anchor 0, 12/20 with anchor 1
        ((28, 28, 38, 38), 6, True, False),  # IoU 4/196 with anchor 2: forced
        ((70, 70, 80, 80), 7, True, False),  # touches no anchor
    ]))
    np.testing.assert_array_equal(targets.positive, [[True, True, True, False]])
    np.testing.assert_array_equal(targets.classes, [[5, 5, 6, 0]])
    wanted = [[0, 0.1, 0, np.log(1.2)], [0, -0.2, 0, np.log(0.6)], [0.8, 0.8, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(targets.box_deltas[0], wanted, atol=1e-6)
    assert not targets.ignored.any()


def test_an_overlap_of_exactly_the_threshold_is_positive():
    targets = assigned(objects_of([((0, 0, 10, 10), 1, True, False)]))  # IoU 1 with anchor 0, 0.5 with anchor 1
    np.testing.assert_array_equal(targets.positive, [[True, True, False, False]])


def test_the_first_of_two_objects_takes_the_anchor_that_both_like_best():
    pair = [((22, 20, 30, 30), 3, True, False), ((20, 20, 30, 30), 4, True, False)]
    assert assigned(objects_of(pair)).classes[0, 2] == 3  # although the second fits better
    assert assigned(objects_of(pair[::-1])).classes[0, 2] == 4


def test_crowds_and_padding_are_nobodys_target():
    nothing = np.zeros((1, 4), bool)
    for entry in [((0, 0, 10, 10), 2, False, False), ((0, 0, 10, 10), 2, True, True), ((0, 0, 0, 0), 0, False, False),
                  ((5, 5, 5, 9), 2, True, False), ((100, 100, 110, 110), 2, True, False)]:
        targets = assigned(objects_of([entry]))
        np.testing.assert_array_equal(targets.positive, nothing)
        assert not targets.classes.any()
        assert not targets.box_deltas.any()
        assert np.isfinite(targets.box_deltas).all()


def test_a_crowd_takes_no_anchor_from_an_object():
    targets = assigned(objects_of([((0, 0, 10, 10), 2, True, True), ((1, 1, 10, 10), 3, True, False)]))
    assert targets.classes[0, 0] == 3


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_against_the_oracle(seed):
    rng = np.random.default_rng(seed)
    grid = anchor_grid(AnchorConfig(min_level=3, max_level=5, num_scales=2, anchor_scale=2.0), (96, 64))
    objects = Objects.of_boxes(oracles.random_boxes(rng, (3, 8)), rng.integers(0, 5, (3, 8)).astype(np.int32),
                               rng.random((3, 8)) < 0.8, rng.random((3, 8)) < 0.2)
    objects.boxes[0, 3] = objects.boxes[0, 2]  # the same box twice, learnt as the first
    objects.valid[0, 2:4], objects.crowd[0, 2:4] = True, False
    objects.valid[2] = False
    targets = assigned(objects, grid)
    for image in range(3):
        learnable = objects.valid[image] & ~objects.crowd[image]
        matched, classes, offsets = oracles.assign(objects.boxes[image], objects.classes[image], learnable, grid.boxes)
        np.testing.assert_array_equal(targets.positive[image], matched >= 0)
        np.testing.assert_array_equal(targets.classes[image], classes)
        np.testing.assert_allclose(targets.box_deltas[image], offsets, atol=1e-4)


@pytest.mark.parametrize("case", ["aligned", "dup", "few", "many", "one", "tiny"])
def test_the_published_assignment(case):
    golden = np.load(TESTDATA / f"targets_{case}.npz")
    count = len(golden["gt_boxes"])
    padded = count + 3
    objects = Objects.of_boxes(np.zeros((1, padded, 4), np.float32), np.zeros((1, padded), np.int32),
                               np.arange(padded)[None] < count, np.zeros((1, padded), bool))
    objects.boxes[0, :count] = golden["gt_boxes"]
    objects.classes[0, :count] = golden["gt_classes"] - 1
    targets = assigned(objects, GRIDS["D0"])
    np.testing.assert_array_equal(np.where(targets.positive[0], targets.classes[0], -1), golden["cls_targets"])
    np.testing.assert_allclose(targets.box_deltas[0], golden["box_targets"], atol=1e-6)
    assert targets.positive.sum() == golden["num_positives"]


def test_counts_of_the_published_anchors():
    """Both found by running NVIDIA's labeller; the small box is learnt on levels 5 and 6, the large one on 6 and 7."""
    grid = anchor_grid(AnchorConfig(aspect_ratios=((1, 1), (1.4, 0.7), (0.7, 1.4))), (512, 512))
    targets = assigned(objects_of([((0, 0, 511, 511), 0, True, False), ((100, 100, 300, 300), 1, True, False)],
                                  [((7, 9, 8, 10), 2, True, False), ((0, 0, 0, 0), 0, False, False)]), grid)
    assert targets.positive.sum(axis=1).tolist() == [84, 1]
    level = np.repeat([3, 4, 5, 6, 7], [9 * side**2 for side in (64, 32, 16, 8, 4)])
    assert set(level[targets.positive[0] & (targets.classes[0] == 0)]) == {6, 7}
    assert set(level[targets.positive[0] & (targets.classes[0] == 1)]) == {5, 6}


# --- to the last bit what all overlaps of all objects say


def drawn_boxes(rng, kind, *, grid, slots):
    """[3, slots, 4] of one kind; drawn where the anchors are, cut to the image but for "outside"."""
    low, high = grid.boxes[:, :2].min(), grid.boxes[:, 2:].max()
    centres = rng.uniform(0, high + low, (3, slots, 2))
    sides = np.exp(rng.uniform(np.log(2), np.log(high), (3, slots, 2)))
    if kind == "thin":
        sides[..., 0] = 10.0 ** rng.uniform(-6, 0, (3, slots))
    elif kind == "tiny":
        sides = 10.0 ** rng.uniform(-5, 0.5, (3, slots, 2))
    elif kind == "huge":
        sides *= 1000
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], axis=-1)
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
    objects = Objects.of_boxes(boxes, rng.integers(1, 90, (3, slots)).astype(np.int32), rng.random((3, slots)) < 0.8,
                               rng.random((3, slots)) < 0.15)
    objects.valid[2, slots // 3 :] = False
    return objects


KINDS = ("boxes", "whole pixels", "anchors", "thin", "tiny", "huge", "outside", "odd")


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")
def test_the_same_bits_as_by_all_overlaps(name, kind):
    grid, rng = GRIDS[name], np.random.default_rng([KINDS.index(kind), len(name)])
    objects = drawn_objects(rng, kind, grid=grid)
    for positive_iou in (0.5, 0.2):
        wanted = to_numpy(oracles.dense_assignment(objects, grid.boxes, positive_iou=positive_iou))
        found = assigned(objects, grid, positive_iou=positive_iou)
        for field in ("positive", "classes", "ignored"):
            np.testing.assert_array_equal(getattr(found, field), getattr(wanted, field), err_msg=f"{field} at {positive_iou}")
        np.testing.assert_array_equal(found.box_deltas[..., :2], wanted.box_deltas[..., :2])
        # TensorFlow's logarithm of the last few entries of a tensor is another function than of those before.
        np.testing.assert_array_max_ulp(found.box_deltas[..., 2:], wanted.box_deltas[..., 2:], maxulp=2)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_same_labels_as_a_program(compiled):
    """XLA computes another logarithm, so offsets differ in the last bit."""
    program = tf.function(lambda objects: assign_anchors(objects, GRIDS["320x448"]), jit_compile=compiled, autograph=False)
    rng = np.random.default_rng(0)
    for kind in ("boxes", "whole pixels", "anchors"):
        objects = drawn_objects(rng, kind, grid=GRIDS["320x448"], slots=40)
        wanted = to_numpy(oracles.dense_assignment(objects, GRIDS["320x448"].boxes))
        found = to_numpy(program(objects))
        np.testing.assert_array_equal(found.positive, wanted.positive)
        np.testing.assert_array_equal(found.classes, wanted.classes)
        np.testing.assert_allclose(found.box_deltas, wanted.box_deltas, atol=1e-6)
        assert wanted.positive.sum() > 100


def test_a_program_of_any_number_of_slots():
    fields = [((2, None, 4), "float32"), ((2, None), "int32"), *[((2, None), "bool")] * 3, ((2, None, 0, 0), "uint8")]
    program = tf.function(lambda objects: assign_anchors(objects, GRIDS["uneven"]), autograph=False,
                          input_signature=[Objects(*(tf.TensorSpec(*field) for field in fields))])
    for slots in (4, 12):
        objects = drawn_objects(np.random.default_rng(slots), "boxes", grid=GRIDS["uneven"], slots=slots)
        objects = Objects(*(values[:2] for values in objects))
        for values, wanted in zip(program(objects), assigned(objects, GRIDS["uneven"]), strict=True):
            np.testing.assert_allclose(values, wanted, atol=1e-6)


def test_more_candidates_than_one_turn_takes():
    """A line one pixel high and as wide as the image lies alike in hundreds of anchors, of which the first is wanted."""
    line = ((100, 0, 101, 512), 7, True, False)
    windows = candidate_windows(np.float32([line[0]]), np.array([True]), GRIDS["D0"], positive_iou=0.5)
    assert np.prod(windows.counts, axis=1).sum() > 64
    targets = assigned(objects_of([line]), GRIDS["D0"])
    overlap = to_numpy(pairwise_iou(np.float32([line[0]]), GRIDS["D0"].boxes))[0]
    assert np.flatnonzero(targets.positive[0]).tolist() == [overlap.argmax()]


# --- without all of them


def largest_tensor(graph):
    """Elements, in the program and the bodies of its loops."""
    bodies = [graph.as_graph_def(add_shapes=True), *graph.as_graph_def(add_shapes=True).library.function]
    nodes = [node for body in bodies for node in (body.node_def if hasattr(body, "node_def") else body.node)]
    shapes = [shape for node in nodes if "_output_shapes" in node.attr for shape in node.attr["_output_shapes"].list.shape]
    return max(np.prod([max(side.size, 1) for side in shape.dim], dtype=np.int64) for shape in shapes)


def test_no_tensor_has_an_entry_for_each_object_and_anchor():
    objects = drawn_objects(np.random.default_rng(0), "boxes", grid=GRIDS["D0"], slots=100)
    batch, anchors = 3, len(GRIDS["D0"])
    ways = (lambda objects: assign_anchors(objects, GRIDS["D0"]),
            lambda objects: oracles.dense_assignment(objects, GRIDS["D0"].boxes))
    objects = tf.nest.map_structure(tf.constant, objects)
    largest = [largest_tensor(tf.function(way, autograph=False).get_concrete_function(objects).graph) for way in ways]
    assert largest == [batch * anchors * 4, batch * 100 * anchors]


def test_a_few_anchors_of_each_object_are_looked_at():
    rng = np.random.default_rng(0)
    boxes = drawn_boxes(rng, "boxes", grid=GRIDS["D0"], slots=200).reshape(-1, 4)
    windows = to_numpy(candidate_windows(boxes, np.arange(600) % 3 > 0, GRIDS["D0"], positive_iou=0.5))
    counts = np.prod(windows.counts, axis=1).sum(axis=1)
    assert not counts[::3].any()  # of padding none
    assert counts.mean() < 50


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5])
def test_a_threshold_that_nothing_need_reach_is_refused(threshold):
    with pytest.raises(ValueError, match="wanted above 0"):
        assigned(objects_of([((0, 0, 10, 10), 1, True, False)]), positive_iou=threshold)
