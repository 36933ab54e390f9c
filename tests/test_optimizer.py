import keras
import numpy as np
import pytest

from efficientdet.families.registry import hyperparameters_of
from efficientdet.optimization.optimizer import (
    Packing,
    WeightAverage,
    build_optimizer,
    squared_norms,
    weights_rate_factors,
)
from program_support.errors import InputError


def built(values, *, precision="float32", factors=None, decays=None, **overrides):
    optimizer = build_optimizer(hyperparameters_of("efficientdet-d0", overrides), precision=precision)
    variables = [keras.Variable(np.float32(value)) for value in values]
    optimizer.build(variables, factors, decays=decays)
    return optimizer, variables


def take(optimizer, variables, gradients, *, rate=1.0):
    """One step, results assigned; returns whether it was applied."""
    state = {name: variable.value for name, variable in optimizer.variables.items()}
    weights = optimizer.packed_weights([variable.value for variable in variables])
    gradients = [keras.ops.convert_to_tensor(np.float32(g)) for g in gradients]
    move, state, applied = optimizer.updated(
        state, gradients, np.float32(rate), squared_norms=squared_norms(gradients), weights=weights
    )
    for variable, part in zip(variables, optimizer.changes(move), strict=True):
        variable.assign_add(part)
    for name, variable in optimizer.variables.items():
        variable.assign(state[name])
    return bool(applied)


def updates(gradients, limit):
    """What is subtracted from weights at rate 1 without momentum."""
    optimizer, variables = built(
        [np.zeros_like(g, np.float32) for g in gradients], clip_gradients_norm=limit, momentum=0.0
    )
    assert take(optimizer, variables, gradients)
    return [-np.asarray(variable) for variable in variables]


def test_clips_each_then_all_by_hand():
    # norms 50, 10 -> each to 10: (6, 8), 10; together sqrt(200) -> factor 10 / sqrt(200) = 1 / sqrt(2)
    first, second = updates([[30.0, 40.0], [10.0]], 10.0)
    np.testing.assert_allclose(first, np.array([6.0, 8.0]) / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(second, [10.0 / np.sqrt(2)], rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_weights_at_learning_rates_of_their_own(name):
    """Each weight moves as in a training in which all have its learning rate."""
    gradients = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    moved = {}
    for run, factors, rate in (
        ("all", [1.0, 0.25, 2.0], 0.1),
        ("first", None, 0.1),
        ("second", None, 0.025),
        ("third", None, 0.2),
    ):
        optimizer, variables = built([[1.0]] * 3, factors=factors, optimizer=name, weight_decay=0.01)
        for gradient in gradients:
            take(optimizer, variables, gradient[:, None], rate=rate)
        moved[run] = [float(np.asarray(variable)[0]) for variable in variables]
    assert moved["all"] == pytest.approx([moved["first"][0], moved["second"][1], moved["third"][2]], rel=1e-6)


def test_momentum_of_sgd_has_the_factor_of_the_weight():
    """Checkpoints of SSD300, whose biases learn twice as fast, resume with the momentum that they stored."""
    optimizer, variables = built([[1.0]] * 2, factors=[1.0, 2.0])
    take(optimizer, variables, [[3.0], [3.0]], rate=0.1)
    np.testing.assert_allclose(np.asarray(optimizer.variables["Momentum"].value), [-0.3, -0.6], rtol=1e-6)


def test_rate_factors_by_the_names_of_weights():
    images = keras.Input((8, 8, 3))
    features = keras.layers.Conv2D(2, 3, name="backbone.stem.conv")(images)
    network = keras.Model(images, keras.layers.Conv2D(1, 1, name="head.classes")(features))
    for changes, wanted in (
        ({}, [1, 1, 1, 1]),
        ({"learning_rate_factors": "/bias$:2"}, [1, 2, 1, 2]),
        ({"learning_rate_factors": "^backbone:0.1"}, [0.1, 0.1, 1, 1]),
        ({"learning_rate_factors": " ^backbone/:0.1 ; kernel:3 "}, [0.3, 0.1, 3, 1]),
    ):
        assert weights_rate_factors(hyperparameters_of("efficientdet-d0", changes), network) == pytest.approx(wanted)
    with pytest.raises(InputError, match=r"'\^trunk' matches no trainable weight"):
        weights_rate_factors(hyperparameters_of("efficientdet-d0", {"learning_rate_factors": "^trunk:0.1"}), network)


@pytest.mark.parametrize(
    "table", ["backbone", "backbone:", ":0.1", "backbone:0", "backbone:-1", "backbone:inf", "(:0.1"]
)
def test_tables_of_rate_factors_of_another_form_are_refused(table):
    with pytest.raises(InputError, match=r"learning_rate_factors is .* items PATTERN:FACTOR"):
        hyperparameters_of("efficientdet-d0", {"learning_rate_factors": table})


def test_momentum_by_hand():
    optimizer, [weight] = built([[1.0]], momentum=0.9)
    wanted, velocity = 1.0, 0.0
    for rate, gradient in ((0.1, 2.0), (0.2, -1.0), (0.05, 3.0)):
        take(optimizer, [weight], [[gradient]], rate=rate)
        velocity = 0.9 * velocity - rate * gradient  # no Nesterov
        wanted += velocity
        np.testing.assert_allclose(np.asarray(weight), [wanted], rtol=1e-6)
    assert int(optimizer.iterations) == 3


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_moves_as_keras_does(name):
    """Ten steps of three weights, one without decay. Keras adds epsilon before the correction of bias: it is tiny."""
    random = np.random.default_rng(1)
    start = [random.normal(size=shape).astype(np.float32) for shape in ((3,), (2, 4), (1,))]
    settings = {"clip_gradients_norm": 0, "weight_decay": 0.1, "epsilon": 1e-12, "decays": [True, False, True]}
    optimizer, weights = built(start, optimizer=name, **settings)
    theirs = [keras.Variable(value) for value in start]
    keras_optimizer = {
        "adam": keras.optimizers.Adam(0.0, epsilon=1e-12),
        "adamw": keras.optimizers.AdamW(0.0, weight_decay=0.1, epsilon=1e-12),
    }[name]
    if name == "adamw":
        keras_optimizer.exclude_from_weight_decay([theirs[1]])
    for rate in np.linspace(0.1, 0.01, 10):
        gradients = [random.normal(size=value.shape).astype(np.float32) for value in start]
        take(optimizer, weights, gradients, rate=rate)
        keras_optimizer.learning_rate.assign(rate)
        keras_optimizer.apply([keras.ops.convert_to_tensor(gradient) for gradient in gradients], theirs)
    for weight, other in zip(weights, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(weight), np.asarray(other), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_decay_is_in_the_loss_or_in_the_step(name):
    hparams = hyperparameters_of("efficientdet-d0", {"optimizer": name, "weight_decay": 0.1})
    assert hparams.decays_in_loss == (0.0 if name == "adamw" else 0.1)
    assert build_optimizer(hparams, precision="float32").reads_weights == (name == "adamw")


def test_loss_scale_is_taken_off_before_clipping():
    optimizer, [weight] = built([[0.0]], precision="mixed_float16", momentum=0.0)
    assert float(optimizer.dynamic_scale) == 2.0**15
    assert take(optimizer, [weight], [[4.0 * 2.0**15]])
    np.testing.assert_allclose(np.asarray(weight), [-4.0])
    assert int(optimizer.iterations) == 1


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_overflow_is_skipped_and_halves_the_scale(bad, name):
    optimizer, variables = built([[1.0], [-0.0]], precision="mixed_float16", optimizer=name)
    assert not take(optimizer, variables, [[1.0], [bad]])
    assert [np.asarray(variable).tobytes() for variable in variables] == [
        np.float32([v]).tobytes() for v in (1.0, -0.0)
    ]
    assert all(not np.asarray(variable.value).any() for variable in optimizer.slot_variables.values())
    assert (int(optimizer.iterations), float(optimizer.dynamic_scale)) == (0, 2.0**14)


def test_the_scale_doubles_after_two_thousand_good_steps():
    optimizer, variables = built([[1.0]], precision="mixed_float16")
    optimizer.good_steps.assign(1998)
    for scale, good_steps in ((2.0**15, 1999), (2.0**16, 0), (2.0**16, 1)):
        take(optimizer, variables, [[1.0]])
        assert (float(optimizer.dynamic_scale), int(optimizer.good_steps)) == (scale, good_steps)
    take(optimizer, variables, [[np.inf]])
    assert (float(optimizer.dynamic_scale), int(optimizer.good_steps)) == (2.0**15, 0)


def test_comes_back_as_it_was():
    arrays = [np.float32([[1, 2], [3, 4]]), np.float32(5), np.float32([6, 7, 8])]
    packing = Packing([array.shape for array in arrays])
    packed = packing.pack(arrays)
    np.testing.assert_array_equal(np.asarray(packed), np.arange(1, 9))
    for array, again, copied in zip(arrays, packing.unpack(packed), packing.arrays(packed), strict=True):
        np.testing.assert_array_equal(np.asarray(again), array)
        np.testing.assert_array_equal(copied, array)
        assert copied.shape == array.shape
    assert packing.size == 8


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


def test_skipped_step_with_weights_that_are_not_finite():
    weight = keras.Variable(np.float32([1.0]))
    average = WeightAverage([weight], decay=0.9)
    weight.assign([np.nan])  # batch statistics of a step that overflowed
    average.update(3, applied=False)
    assert np.asarray(average.averages[0]) == 1.0
