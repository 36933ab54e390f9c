"""The families and label assignment give the same numbers on TensorFlow and on JAX."""

import backend_probe
import numpy as np
import pytest
from jax_process import TESTS, run_under_jax
from small_families import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both(tmp_path_factory, with_jax):
    """The probe's arrays on TensorFlow and on JAX."""
    folder = tmp_path_factory.mktemp("backends")
    given = backend_probe.given_arrays()
    np.savez(folder / "given.npz", **given)
    run_under_jax(TESTS / "backend_probe.py", folder / "given.npz", folder / "found.npz", TESTS.parent)
    return backend_probe.found_arrays(given), dict(np.load(folder / "found.npz"))


def test_both_find_arrays_of_the_same_names_kinds_and_shapes(both):
    tensorflow, jax = both
    assert {name: (array.dtype, array.shape) for name, array in tensorflow.items()} == {
        name: (array.dtype, array.shape) for name, array in jax.items()
    }


@pytest.mark.parametrize("part", [*SMALL, "by overlap", "task aligned"])
def test_both_give_the_same_numbers(both, part):
    tensorflow, jax = both
    names = [name for name in tensorflow if name.startswith(part)]
    found = "positive" if part not in SMALL else "valid"
    assert sum(tensorflow[name].sum() for name in names if name.endswith(found)) > 3
    for name in names:
        if tensorflow[name].dtype == np.float32:
            np.testing.assert_allclose(tensorflow[name], jax[name], rtol=1e-3, atol=1e-3, err_msg=name)
        else:
            np.testing.assert_array_equal(tensorflow[name], jax[name], err_msg=name)


def test_the_numbers_depend_on_the_images(both):
    for name in SMALL:
        first, second = both[0][f"{name} output 0"]
        assert np.abs(first - second).max() > 1e-2
