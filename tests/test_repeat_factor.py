from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import tiny_records
from labeled import NAMES, healthy

from dataset.input.input_config import InputConfig
from dataset.input.order import StreamOrder, epoch_length, repeat_factors
from dataset.input.pipeline import training_dataset
from dataset.records.record_index import index_records


def with_classes(*of_images):
    """Images that have objects of these classes."""
    images = healthy(len(of_images))
    owners = [number for number, classes in enumerate(of_images) for _ in classes]
    classes = np.array([NAMES.index(name) for names in of_images for name in names], np.int32)
    return replace(
        images,
        owners=np.array(owners, np.int32),
        classes=classes,
        boxes=images.boxes[: len(owners)],
        crowd=np.zeros(len(owners), bool),
    )


def test_factor_is_that_of_the_rarest_class():
    images = with_classes(("cat", "cat"), ("cat",), ("cat", "dog"), (), ("cat",), ("cat",), ("cat",), ("dog", "fox"))
    # of 8 images cat is in 6, dog in 2, fox in 1
    factors = repeat_factors(images, 0.5)
    np.testing.assert_allclose(factors, [1, 1, sqrt(2), 1, 1, 1, 1, 2])
    assert repeat_factors(images, 0.125).tolist() == [1] * 8


FACTORS = np.array([1, 1.25, 2, 1, 3.7, 1.5, 1, 1.01])


def test_an_epoch_has_every_record_as_often_as_its_factor_says():
    order, length, epochs = StreamOrder(8, 5, FACTORS), epoch_length(FACTORS), 4000
    assert length == 11 + 2  # 1.46 of the rests
    numbers = order.records(np.arange(epochs * length)).reshape(epochs, length)
    counts = np.stack([np.bincount(epoch, minlength=8) for epoch in numbers])
    assert (counts >= np.floor(FACTORS)).all()
    assert (counts <= np.ceil(FACTORS) + 1).all()
    rests = FACTORS % 1  # the whole number of images that are drawn is a little more than their sum
    expected = np.floor(FACTORS) + rests * np.ceil(rests.sum()) / rests.sum()
    np.testing.assert_allclose(counts.mean(axis=0), expected, atol=0.03)
    assert len({tuple(epoch) for epoch in numbers[:50].tolist()}) == 50


def test_the_stream_is_a_function_of_seed_and_position():
    one, again, other = (StreamOrder(8, seed, FACTORS) for seed in (5, 5, 6))
    positions = np.arange(200)
    whole = one.records(positions)
    assert np.concatenate([again.records(part) for part in np.split(positions, [3, 90, 91])]).tolist() == whole.tolist()
    assert again.records(positions[150:]).tolist() == whole[150:].tolist()
    assert other.records(positions).tolist() != whole.tolist()


def test_whole_factors_leave_nothing_to_chance():
    order = StreamOrder(3, 0, np.array([1.0, 2.0, 1.0]))
    assert sorted(order.records(np.arange(4)).tolist()) == [0, 1, 1, 2]


def test_without_factors_the_order_is_what_it_was():
    expected = np.random.Generator(np.random.Philox(key=[5, 1])).permutation(8)
    assert StreamOrder(8, 5).records(np.arange(8, 16)).tolist() == expected.tolist()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "train"
    return index_records([tiny_records.write(path, [tiny_records.example(number) for number in range(8)])])


def test_batches_follow_the_factors_from_any_step_and_for_any_rank(index):
    def ids(count, *, batch_size=4, **place):
        config = InputConfig.letterboxed(image_size=(32, 32), batch_size=batch_size, category_ids=(1,), seed=5)
        batches = iter(training_dataset(index, config, factors=FACTORS, **place))
        return [next(batches).image_ids.numpy().tolist() for _ in range(count)]

    whole = ids(6)
    assert [number for batch in whole for number in batch] == StreamOrder(8, 5, FACTORS).records(np.arange(24)).tolist()
    assert ids(3, first_position=12) == whole[3:]
    ranks = [ids(6, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    assert [one + other for one, other in zip(*ranks, strict=True)] == whole
