import numpy as np
import pytest
import tiny_records
from letterboxed_inputs import letterboxed

from dataset.input.pipeline import StreamOrder, epoch_length, training_dataset
from dataset.records.record_index import index_records

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


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "train"
    return index_records([tiny_records.write(path, [tiny_records.example(number) for number in range(8)])])


def test_batches_follow_the_factors_from_any_step_and_for_any_rank(index):
    def ids(count, *, batch_size=4, **place):
        config = letterboxed(image_size=(32, 32), batch_size=batch_size, category_ids=(1,), seed=5)
        batches = iter(training_dataset(index, config, factors=FACTORS, **place))
        return [next(batches).image_ids.numpy().tolist() for _ in range(count)]

    whole = ids(6)
    assert [number for batch in whole for number in batch] == StreamOrder(8, 5, FACTORS).records(np.arange(24)).tolist()
    assert ids(3, first_position=12) == whole[3:]
    ranks = [ids(6, batch_size=2, rank=rank, world_size=2) for rank in (0, 1)]
    assert [one + other for one, other in zip(*ranks, strict=True)] == whole
