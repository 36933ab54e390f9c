import numpy as np
import oracles
import pytest
from oracles import TESTDATA, to_numpy

from object_detection.anchor_grid import AnchorConfig, anchor_boxes
from object_detection.assignment import assign_anchors
from object_detection.structures import Objects

ANCHORS = np.float32([[0, 0, 10, 10], [0, 0, 10, 20], [20, 20, 30, 30], [40, 40, 50, 50]])


def objects_of(*images):
    """Each image a list of (box, class, valid, crowd)."""
    boxes, classes, valid, crowd = (np.array([[entry[i] for entry in image] for image in images]) for i in range(4))
    return Objects(boxes.astype(np.float32), classes.astype(np.int32), valid.astype(bool), crowd.astype(bool))


def assigned(objects, anchors=ANCHORS):
    return to_numpy(assign_anchors(objects, anchors))


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
    anchors = anchor_boxes(AnchorConfig(min_level=3, max_level=5, num_scales=2, anchor_scale=2.0), (96, 64))
    objects = Objects(oracles.random_boxes(rng, (3, 8)), rng.integers(0, 5, (3, 8)).astype(np.int32),
                      rng.random((3, 8)) < 0.8, rng.random((3, 8)) < 0.2)
    objects.boxes[0, 3] = objects.boxes[0, 2]  # the same box twice, learnt as the first
    objects.valid[0, 2:4], objects.crowd[0, 2:4] = True, False
    objects.valid[2] = False
    targets = assigned(objects, anchors)
    for image in range(3):
        learnable = objects.valid[image] & ~objects.crowd[image]
        matched, classes, offsets = oracles.assign(objects.boxes[image], objects.classes[image], learnable, anchors)
        np.testing.assert_array_equal(targets.positive[image], matched >= 0)
        np.testing.assert_array_equal(targets.classes[image], classes)
        np.testing.assert_allclose(targets.box_deltas[image], offsets, atol=1e-4)


@pytest.mark.parametrize("case", ["aligned", "dup", "few", "many", "one", "tiny"])
def test_the_published_assignment(case):
    golden = np.load(TESTDATA / f"targets_{case}.npz")
    count = len(golden["gt_boxes"])
    padded = count + 3
    objects = Objects(np.zeros((1, padded, 4), np.float32), np.zeros((1, padded), np.int32),
                      np.arange(padded)[None] < count, np.zeros((1, padded), bool))
    objects.boxes[0, :count] = golden["gt_boxes"]
    objects.classes[0, :count] = golden["gt_classes"] - 1
    targets = assigned(objects, anchor_boxes(AnchorConfig(), (512, 512)))
    np.testing.assert_array_equal(np.where(targets.positive[0], targets.classes[0], -1), golden["cls_targets"])
    np.testing.assert_allclose(targets.box_deltas[0], golden["box_targets"], atol=1e-6)
    assert targets.positive.sum() == golden["num_positives"]


def test_counts_of_the_published_anchors():
    """Both found by running NVIDIA's labeller; the small box is learnt on levels 5 and 6, the large one on 6 and 7."""
    anchors = anchor_boxes(AnchorConfig(aspect_ratios=((1, 1), (1.4, 0.7), (0.7, 1.4))), (512, 512))
    targets = assigned(objects_of([((0, 0, 511, 511), 0, True, False), ((100, 100, 300, 300), 1, True, False)],
                                  [((7, 9, 8, 10), 2, True, False), ((0, 0, 0, 0), 0, False, False)]), anchors)
    assert targets.positive.sum(axis=1).tolist() == [84, 1]
    level = np.repeat([3, 4, 5, 6, 7], [9 * side**2 for side in (64, 32, 16, 8, 4)])
    assert set(level[targets.positive[0] & (targets.classes[0] == 0)]) == {6, 7}
    assert set(level[targets.positive[0] & (targets.classes[0] == 1)]) == {5, 6}
