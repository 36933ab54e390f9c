import keras
import numpy as np
import pytest

from efficientdet.families.registry import hyperparameters_of
from efficientdet.training.optimizer import ClippedSGD, build_optimizer, global_norm, inner_optimizer


def built(values, *, precision="float32", **overrides):
    optimizer = build_optimizer(hyperparameters_of("efficientdet-d0", overrides), precision=precision)
    variables = [keras.Variable(np.float32(value)) for value in values]
    optimizer.build(variables)
    return optimizer, variables


def updates(gradients, limit):
    """What is subtracted from weights at rate 1 without momentum."""
    optimizer, variables = built([np.zeros_like(g, np.float32) for g in gradients], clip_gradients_norm=limit, momentum=0.0)
    inner_optimizer(optimizer).learning_rate.assign(1.0)
    optimizer.apply([keras.ops.convert_to_tensor(np.float32(g)) for g in gradients], variables)
    return [-np.asarray(variable) for variable in variables]


def test_clips_each_then_all_by_hand():
    # norms 50, 10 -> each to 10: (6, 8), 10; together sqrt(200) -> factor 10 / sqrt(200) = 1 / sqrt(2)
    first, second = updates([[30.0, 40.0], [10.0]], 10.0)
    np.testing.assert_allclose(first, np.array([6.0, 8.0]) / np.sqrt(2), rtol=1e-6)
    np.testing.assert_allclose(second, [10.0 / np.sqrt(2)], rtol=1e-6)


def test_small_gradients_are_left_as_they_are():
    for gradient, found in zip([[3.0, 4.0], [-5.0], [0.0]], updates([[3.0, 4.0], [-5.0], [0.0]], 10.0), strict=True):
        np.testing.assert_array_equal(found, gradient)


def test_no_clipping():
    np.testing.assert_array_equal(updates([[3000.0, 4000.0]], 0.0)[0], [3000.0, 4000.0])


def test_clipping_of_random_gradients():
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(5, 3)) * scale for scale in (0.1, 1.0, 10.0, 100.0)]
    cut = [g * min(1.0, 10.0 / np.linalg.norm(g)) for g in gradients]
    norm = np.sqrt(sum(np.sum(g**2) for g in cut))
    for wanted, found in zip(cut, updates(gradients, 10.0), strict=True):
        np.testing.assert_allclose(found, wanted * min(1.0, 10.0 / norm), rtol=1e-5)


def test_global_norm():
    assert float(global_norm([np.float32([3.0]), np.float16([[4.0]])])) == 5.0


def test_momentum_by_hand():
    optimizer, [weight] = built([[1.0]], momentum=0.9)
    wanted, velocity = 1.0, 0.0
    for rate, gradient in ((0.1, 2.0), (0.2, -1.0), (0.05, 3.0)):
        optimizer.learning_rate.assign(rate)
        optimizer.apply([keras.ops.convert_to_tensor(np.float32([gradient]))], [weight])
        velocity = 0.9 * velocity - rate * gradient  # no Nesterov
        wanted += velocity
        np.testing.assert_allclose(np.asarray(weight), [wanted], rtol=1e-6)
    assert int(optimizer.iterations) == 3


def test_loss_scale_is_taken_off_before_clipping():
    optimizer, [weight] = built([[0.0]], precision="mixed_float16", momentum=0.0)
    assert float(optimizer.scale_loss(np.float32(1.0))) == 2.0**15
    inner_optimizer(optimizer).learning_rate.assign(1.0)
    optimizer.apply([keras.ops.convert_to_tensor(np.float32([4.0 * 2.0**15]))], [weight])
    np.testing.assert_allclose(np.asarray(weight), [-4.0])
    assert int(inner_optimizer(optimizer).iterations) == 1


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_overflow_is_skipped_and_halves_the_scale(bad):
    optimizer, variables = built([[1.0], [2.0]], precision="mixed_float16")
    inner_optimizer(optimizer).learning_rate.assign(1.0)
    optimizer.apply([keras.ops.convert_to_tensor(np.float32([value])) for value in (1.0, bad)], variables)
    assert [float(np.asarray(variable)[0]) for variable in variables] == [1.0, 2.0]
    assert int(inner_optimizer(optimizer).iterations) == 0
    assert float(optimizer.dynamic_scale) == 2.0**14


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_no_loss_scale_without_float16(precision):
    optimizer, _ = built([[1.0]], precision=precision)
    assert isinstance(optimizer, ClippedSGD)
    assert inner_optimizer(optimizer) is optimizer
