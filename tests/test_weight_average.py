import keras
import numpy as np
import pytest

from efficientdet.optimization.weight_average import WeightAverage


def test_against_a_plain_loop():
    random = np.random.default_rng(0)
    variables = [keras.Variable(random.normal(size=shape).astype(np.float32)) for shape in ((3, 2), (4,))]
    average = WeightAverage(variables, decay=0.5)
    wanted = [np.asarray(variable.value).astype(np.float64) for variable in variables]
    for step in range(1, 20):
        decay = min(0.5, (1 + step) / (10 + step))  # 2/11, 3/12, .. until the decay is reached at step 8
        for variable, value in zip(variables, wanted, strict=True):
            variable.assign(random.normal(size=value.shape))
            value *= decay
            value += (1 - decay) * np.asarray(variable.value)
        average.update(step)
        for found, value in zip(average.averages, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(found), value, atol=1e-6)


def test_first_steps_by_hand():
    weight = keras.Variable(np.float32([1.0]))
    average = WeightAverage([weight], decay=0.9998)
    assert np.asarray(average.averages[0]) == 1.0  # starts at the weights, not at zero
    weight.assign([2.0])
    average.update(1)
    np.testing.assert_allclose(np.asarray(average.averages[0]), [1 + 9 / 11])
    average.update(2)
    np.testing.assert_allclose(np.asarray(average.averages[0]), [2 - (2 / 11) * (3 / 12)])


def test_late_steps_use_the_decay():
    weight = keras.Variable(np.float32([0.0]))
    average = WeightAverage([weight], decay=0.75)
    weight.assign([1.0])
    average.update(10**6)
    np.testing.assert_allclose(np.asarray(average.averages[0]), [0.25])


def test_skipped_step_leaves_it_alone():
    weight = keras.Variable(np.float32([0.1, np.pi]))
    average = WeightAverage([weight], decay=0.9)
    before = np.asarray(average.averages[0]).tobytes()
    weight.assign([5.0, 6.0])
    average.update(3, applied=keras.ops.convert_to_tensor(False))
    assert np.asarray(average.averages[0]).tobytes() == before


def test_skipped_step_with_weights_that_are_not_finite():
    weight = keras.Variable(np.float32([1.0]))
    average = WeightAverage([weight], decay=0.9)
    weight.assign([np.nan])  # batch statistics of a step that overflowed
    average.update(3, applied=False)
    assert np.asarray(average.averages[0]) == 1.0


def test_does_not_share_memory_with_the_weights():
    weight = keras.Variable(np.float32([1.0]))
    average = WeightAverage([weight], decay=0.9)
    weight.assign([7.0])
    assert np.asarray(average.averages[0]) == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_average_of_short_floats_is_float32(dtype):
    average = WeightAverage([keras.Variable(np.ones(2, np.float32), dtype=dtype)], decay=0.9)
    assert average.packed.dtype == "float32"
