"""Regions and their objects, what is drawn of them, and the losses of what is drawn, against torchvision's."""

import numpy as np
import pytest
import tensorflow as tf
from oracles import to_numpy

from efficientdet.plugins.mask_rcnn.sampled_regions import sample_masks, sample_regions
from object_detection.stateless_random import seeds_of


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
