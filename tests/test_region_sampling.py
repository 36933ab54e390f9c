"""Regions and their objects, what is drawn of them, and the losses of what is drawn, against torchvision's."""

import numpy as np
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.regions.region_losses import mask_loss_sum, proposal_loss_sums, region_loss_sums
from object_detection.regions.region_sampling import assign_regions, sample_masks, sample_regions
from object_detection.stateless_random import seeds_of
from object_detection.structures import Objects
from program_support.errors import InputError

YX = [1, 0, 3, 2]


def seeds(count, seed=3):
    return seeds_of(tf.range(count), seed=seed)


def kinds(images, positives, negatives, others=5):
    """Positive and negative ones, mixed; the same in each image."""
    mixed = np.random.default_rng(0).permutation([1] * positives + [2] * negatives + [0] * others)
    return tf.constant(np.tile(mixed == 1, (images, 1))), tf.constant(np.tile(mixed == 2, (images, 1)))


@pytest.mark.parametrize(
    ("positives", "negatives", "taken"),
    [(20, 60, (4, 12)), (2, 60, (2, 14)), (20, 3, (4, 3)), (0, 4, (0, 4)), (0, 0, (0, 0)), (3, 60, (3, 13))],
)
def test_how_many_of_each_kind(positives, negatives, taken):
    positive, negative = map(np.asarray, kinds(3, positives, negatives))
    numbers, is_positive, valid = to_numpy(
        sample_regions(tf.constant(positive), tf.constant(negative), seeds(3), count=16, positive_share=0.25)
    )
    masks = to_numpy(
        sample_masks(tf.constant(positive), tf.constant(negative), seeds(3), count=16, positive_share=0.25)
    )
    total = sum(taken)
    for image in range(3):
        assert valid[image].tolist() == [True] * total + [False] * (16 - total)
        assert is_positive[image].tolist() == [True] * taken[0] + [False] * (16 - taken[0])
        assert positive[image][numbers[image][: taken[0]]].all()
        assert negative[image][numbers[image][taken[0] : total]].all()
        assert len(set(numbers[image][:total])) == total
        assert not numbers[image][total:].any()
        assert sorted(numbers[image][: taken[0]]) == np.flatnonzero(masks[0][image]).tolist()
        assert sorted(numbers[image][taken[0] : total]) == np.flatnonzero(masks[1][image]).tolist()


def test_each_is_drawn_as_often_as_any_other():
    positive, negative = kinds(4000, 10, 20)
    masks = to_numpy(sample_masks(positive, negative, seeds(4000), count=12, positive_share=0.5))
    for drawn, among, chance in zip(masks, (positive, negative), (6 / 10, 6 / 20), strict=True):
        often = drawn[:, np.asarray(among)[0]].mean(axis=0)
        np.testing.assert_allclose(often, chance, atol=5 * np.sqrt(chance * (1 - chance) / 4000))
        pairs = np.corrcoef(drawn[:, np.asarray(among)[0]].T.astype(float))
        expected = -1 / (len(often) - 1)  # of draws without putting back
        np.testing.assert_allclose(pairs[np.triu_indices(len(often), 1)], expected, atol=6 / np.sqrt(4000))


def test_an_image_draws_the_same_in_any_batch_and_another_at_another_step():
    positive, negative = kinds(4, 20, 60)

    def drawn(part, seed=3):
        return to_numpy(
            sample_regions(positive[part], negative[part], seeds(4, seed)[part], count=16, positive_share=0.25)[0]
        )

    whole = drawn(slice(0, 4))
    np.testing.assert_array_equal(np.concatenate([drawn(slice(0, 1)), drawn(slice(1, 4))]), whole)
    assert len({tuple(row) for row in np.concatenate([whole, drawn(slice(0, 4), seed=4)])}) == 8


def test_more_slots_than_regions_take_everything():
    positive, negative = kinds(2, 5, 7)
    for count, compiled in ((17, False), (40, True)):
        numbers, is_positive, valid = to_numpy(
            tf.function(sample_regions, jit_compile=compiled, autograph=False)(
                positive, negative, seeds(2), count=count, positive_share=0.5
            )
        )
        assert numbers.shape == (2, count)
        np.testing.assert_array_equal(
            numbers[0][valid[0]], np.concatenate([np.flatnonzero(np.asarray(kind)[0]) for kind in (positive, negative)])
        )
        assert is_positive.sum() == 10
        assert valid.sum() == 24


def objects_of(boxes, crowd=(), slots=None):
    """Of one image; boxes yxyx."""
    count, slots = len(boxes), slots or len(boxes) + 2
    padded, valid, is_crowd = (
        np.zeros((1, slots, 4), np.float32),
        np.arange(slots)[None] < count,
        np.zeros((1, slots), bool),
    )
    padded[0, :count] = boxes
    is_crowd[0, list(crowd)] = True
    return Objects(*map(tf.constant, Objects.of_boxes(padded, np.zeros((1, slots), np.int32), valid, is_crowd)))


def test_regions_and_their_objects_by_hand():
    objects = objects_of([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 20], [50, 50, 90, 90]], crowd=[3])
    boxes = tf.constant(
        [[[0.0, 0, 10, 10], [0, 0, 10, 16], [50, 50, 90, 90], [0, 0, 10, 5], [0, 0, 10, 4], [0, 0, 10, 10]]]
    )
    valid = tf.constant([[True] * 5 + [False]])
    matched, positive, negative = to_numpy(assign_regions(boxes, valid, objects))
    np.testing.assert_array_equal(matched, [[0, 2, 0, 0, 0, 0]])
    np.testing.assert_array_equal(positive, [[True, True, False, True, False, False]])
    np.testing.assert_array_equal(negative, [[False, False, True, False, True, False]])
    assert to_numpy(assign_regions(boxes, valid, objects, strictly=True))[1].tolist() == [[True] * 2 + [False] * 4]
    assert to_numpy(assign_regions(boxes, valid, objects, positive_iou=0.7))[1].sum() == 2
    with pytest.raises(InputError, match="positive_iou is 0"):
        assign_regions(boxes, valid, objects, positive_iou=0)


def test_the_published_losses_of_proposals(golden_folder):
    golden = np.load(golden_folder / "families" / "maskrcnn_rpn_losses.npz")
    anchors, labels = golden["anchors"][:, YX], golden["labels"]
    wanted = np.zeros((*labels.shape, 4), np.float32)
    for image in range(3):
        boxes, chosen = golden[f"boxes{image}"][:, YX], labels[image] == 1
        if len(boxes):
            objects = objects_of(boxes)
            # Every one is a user's at this threshold: the object that it overlaps most
            matched = to_numpy(
                assign_regions(tf.constant(anchors[None]), tf.ones((1, len(anchors)), bool), objects, positive_iou=1e-6)
            )[0][0]
            wanted[image, chosen] = FasterRcnnBoxCoder().encode(boxes[matched[chosen]], anchors[chosen])
    wanted[labels != 1] = -np.inf
    every = labels == 1, labels == 0
    subset = [np.zeros(labels.shape, bool) for _ in range(2)]
    for image in range(3):
        for mask, name in zip(subset, ("positives", "negatives"), strict=True):
            mask[image, golden[f"subset_{name}{image}"]] = True
    for name, (positive, negative) in {"all": every, "subset": subset}.items():
        sums = proposal_loss_sums(
            *map(tf.constant, (golden["objectness"], golden["deltas"][..., YX], wanted, positive, negative))
        )
        count = positive.sum() + negative.sum()
        np.testing.assert_allclose(sums[0] / count, golden[f"{name}_objectness_loss"], rtol=1e-5)
        np.testing.assert_allclose(sums[1] / count, golden[f"{name}_box_loss"], rtol=1e-5)


@pytest.mark.parametrize("name", ["all", "subset"])
def test_the_published_losses_of_regions(golden_folder, name):
    golden, coder = (
        np.load(golden_folder / "families" / "maskrcnn_roi_losses.npz"),
        FasterRcnnBoxCoder(weights=(10, 10, 5, 5)),
    )
    boxes_of_all, classes_of_all, deltas_of_all = [], [], []
    for image in range(3):
        objects, labels = golden[f"gt_boxes{image}"][:, YX], golden[f"gt_labels{image}"]
        boxes = np.concatenate([golden[f"proposals{image}"][:, YX], objects])[golden[f"{name}_sampled{image}"]]
        matched, positive, _ = (
            found[0]
            for found in to_numpy(
                assign_regions(tf.constant(boxes[None]), tf.ones((1, len(boxes)), bool), objects_of(objects))
            )
        )
        np.testing.assert_array_equal(matched, golden[f"{name}_matched{image}"])
        classes = np.where(positive, np.append(labels, [0] * 2)[matched], 0)
        np.testing.assert_array_equal(classes, golden[f"{name}_labels{image}"])
        deltas = np.full((len(boxes), 4), -np.inf, np.float32)
        deltas[positive] = coder.encode(
            np.append(objects, np.zeros((2, 4), np.float32), axis=0)[matched[positive]], boxes[positive]
        )
        np.testing.assert_allclose(
            deltas[positive][:, YX], golden[f"{name}_regression_targets_of_positives{image}"], atol=2e-5
        )
        for whole, part in zip((boxes_of_all, classes_of_all, deltas_of_all), (boxes, classes, deltas), strict=True):
            whole.append(part)
    classes, deltas = np.concatenate(classes_of_all).astype(np.int32), np.concatenate(deltas_of_all)
    prefix = "all_" if name == "all" else ""
    logits = golden[f"{prefix}class_logits"]
    regression = golden[f"{prefix}box_regression"].reshape(*logits.shape, 4)[..., YX]
    valid = np.ones(len(classes), bool)
    sums = region_loss_sums(*(tf.constant(values[None]) for values in (logits, regression, classes, deltas, valid)))
    np.testing.assert_allclose(sums[0] / len(classes), golden[f"{name}_loss_classifier"], rtol=1e-5)
    np.testing.assert_allclose(sums[1] / len(classes), golden[f"{name}_loss_box_reg"], rtol=1e-5)
    if name == "subset":
        learnt = classes[classes > 0]
        loss = mask_loss_sum(
            *(
                tf.constant(values[None])
                for values in (
                    golden["mask_logits"].transpose(0, 2, 3, 1),
                    learnt,
                    golden["mask_targets"],
                    np.ones(len(learnt), bool),
                )
            )
        )
        np.testing.assert_allclose(loss / len(learnt), golden["loss_mask"], rtol=1e-5)


def test_what_was_not_drawn_has_no_gradient():
    logits, deltas = tf.constant([[1.0, 2.0, 3.0]]), tf.ones((1, 3, 4))
    wanted = tf.constant([[[0.0] * 4, [-np.inf] * 4, [np.nan] * 4]])
    with tf.GradientTape() as tape:
        tape.watch([logits, deltas])
        total = sum(
            proposal_loss_sums(
                logits, deltas, wanted, tf.constant([[True, False, False]]), tf.constant([[False, True, False]])
            )
        )
    of_logits, of_deltas = tape.gradient(total, [logits, deltas])
    np.testing.assert_array_equal(np.asarray(of_logits)[0] != 0, [True, True, False])
    np.testing.assert_array_equal(of_deltas, [[[1] * 4, [0] * 4, [0] * 4]])
