"""Under JAX a batch over eight devices gives what one device gives with the same batch."""

import numpy as np
import pytest
from jax_process import TESTS, run_under_jax


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("jax")
    path = tmp_path_factory.mktemp("mesh") / "found.npz"
    run_under_jax(TESTS / "mesh_probe.py", path, devices=8)
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("one", "several"), [("1", "8"), ("accumulated on one", "accumulated")])
def test_several_devices_equal_one_with_the_complete_batch(found, one, several):
    """Reports of all steps, weights, batch statistics, their calibration, the average, and detections."""
    names = [name.removeprefix(f"{one}/") for name in found if name.startswith(f"{one}/")]
    assert len(names) > 80
    for name in names:
        np.testing.assert_allclose(
            found[f"{several}/{name}"], found[f"{one}/{name}"], rtol=2e-5, atol=2e-5, err_msg=name
        )


def test_the_statistics_are_those_of_the_complete_batch(found):
    """With those of each device's own images the steps would differ."""
    assert abs(found["1/report/1/loss"] - found["accumulated on one/report/1/loss"]) > 1e-4
