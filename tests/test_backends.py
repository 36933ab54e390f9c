"""object_detection and model run where TensorFlow cannot be imported, and give the same numbers there."""

import os
import subprocess
import sys
from pathlib import Path

import backend_probe
import numpy as np
import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def both(tmp_path_factory, with_jax):
    """The probe's arrays on TensorFlow and on JAX."""
    folder = tmp_path_factory.mktemp("backends")
    given = backend_probe.given_arrays()
    np.savez(folder / "given.npz", **given)
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, TESTS / "backend_probe.py", folder / "given.npz", folder / "found.npz", TESTS.parent],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return backend_probe.found_arrays(given), dict(np.load(folder / "found.npz"))


def test_both_find_arrays_of_the_same_names_kinds_and_shapes(both):
    tensorflow, jax = both
    assert {name: (array.dtype, array.shape) for name, array in tensorflow.items()} == {
        name: (array.dtype, array.shape) for name, array in jax.items()
    }


@pytest.mark.parametrize("part", ["targets", "outputs", "b0", "losses", "task_aligned"])
def test_both_give_the_same_numbers(both, part):
    tensorflow, jax = both
    names = [name for name in tensorflow if name.startswith(f"{part}.")]
    assert names
    for name in names:
        assert np.isfinite(tensorflow[name]).all()
        np.testing.assert_allclose(tensorflow[name], jax[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_both_assign_the_same_labels(both):
    tensorflow, jax = both
    for name in ("assignment.positive", "assignment.classes"):
        np.testing.assert_array_equal(tensorflow[name], jax[name])
    np.testing.assert_allclose(tensorflow["assignment.box_deltas"], jax["assignment.box_deltas"], atol=1e-6)
    assert tensorflow["assignment.positive"].sum() > 100


@pytest.mark.parametrize("part", ["detections", "hard.True", "hard.False", "gaussian.False"])
def test_both_detect_the_same(both, part):
    tensorflow, jax = both
    assert tensorflow[f"{part}.valid"].any()
    np.testing.assert_array_equal(tensorflow[f"{part}.valid"], jax[f"{part}.valid"])
    np.testing.assert_array_equal(tensorflow[f"{part}.classes"], jax[f"{part}.classes"])
    np.testing.assert_allclose(tensorflow[f"{part}.scores"], jax[f"{part}.scores"], atol=1e-5)
    # Random weights make boxes of up to 35,000 pixels, where neighboring float32 numbers are 0.004 apart.
    np.testing.assert_allclose(tensorflow[f"{part}.boxes"], jax[f"{part}.boxes"], rtol=1e-5, atol=1e-3)


def test_both_have_the_same_regions(both):
    tensorflow, jax = both
    assert (tensorflow["regions.scores"] > 0).sum() > 3
    assert (tensorflow["regions.targets of classes"] > 0).sum() > 3
    names = [name for name in tensorflow if name.startswith("regions.")]
    assert len(names) == 12
    for name in names:
        np.testing.assert_allclose(tensorflow[name], jax[name], rtol=1e-3, atol=1e-3, err_msg=name)


def test_the_numbers_depend_on_the_images(both):
    for name in ("outputs.logits", "b0.logits"):
        first, second = both[0][name]
        assert np.abs(first - second).max() > 1e-2


def test_both_have_the_same_gradients(both):
    tensorflow, jax = both
    names = [name for name in tensorflow if name.startswith("gradients.")]
    assert len(names) > 20
    for name in names:
        scale = np.abs(tensorflow[name]).max()
        np.testing.assert_allclose(tensorflow[name], jax[name], rtol=0, atol=max(1e-3 * scale, 1e-5), err_msg=name)
    assert max(np.abs(tensorflow[name]).max() for name in names) > 1
