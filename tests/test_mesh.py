"""Under JAX a batch over eight devices gives what one device gives with the same batch."""

import numpy as np
import pytest
from jax_process import TESTS, run_under_jax

from efficientdet.checkpoints.checkpoint import read_arrays

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("jax")
    path = tmp_path_factory.mktemp("mesh") / "found.npz"
    run_under_jax(TESTS / "mesh_probe.py", path, devices=8)
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("one", "several"), [("1", "8"), ("options on one", "options")])
def test_several_devices_equal_one_with_the_complete_batch(found, one, several):
    """Reports of all steps, weights, batch statistics, their calibration, the average, and detections.

    The options are accumulated parts of a batch and statistics of groups.
    """
    names = [name.removeprefix(f"{one}/") for name in found if name.startswith(f"{one}/")]
    assert len(names) > 70
    for name in names:
        np.testing.assert_allclose(
            found[f"{several}/{name}"], found[f"{one}/{name}"], rtol=2e-5, atol=2e-5, err_msg=name
        )


def test_the_statistics_are_those_of_the_complete_batch(found):
    """With those of each device's own images the steps would differ."""
    assert abs(found["1/report/1/loss"] - found["options on one/report/1/loss"]) > 1e-4


def test_devices_wait_for_each_other_in_no_loop(found):
    """Objects are assigned image by image; as sums of all devices they were 100 kB for each object, and met others."""
    assert found["8/sums in loops"] == 0


def test_bfloat16_on_several_devices_is_close_to_float32(found):
    for step in range(3):
        loss = found[f"bfloat16/report/{step}/loss"]
        assert loss == pytest.approx(found[f"1/report/{step}/loss"], rel=0.05)
        assert loss != found[f"8/report/{step}/loss"]


def test_inference_uses_devices_that_can_share_a_batch(found):
    assert set(found["devices"]) == {6}
    boxes = found["8/detections/boxes"][:3]
    np.testing.assert_allclose(found["8/boxes of three images"], boxes, rtol=2e-5, atol=2e-5)


def test_groups_follow_from_the_devices(found):
    assert list(found["world"]) == [8, 4, 2]


def test_a_training_is_stopped_and_resumed_on_other_numbers_of_devices(tmp_path, with_jax):
    """It ends as one on a single device."""
    run_under_jax(TESTS / "mesh_training.py", tmp_path, devices=8, cache=tmp_path / "cache")
    one, several = (read_arrays(str(tmp_path / name / "ckpt-final")) for name in ("one", "several"))
    assert one["global_step"] == several["global_step"] == 8
    assert set(one) == set(several)
    for name, value in one.items():
        np.testing.assert_allclose(several[name], value, rtol=2e-5, atol=2e-5, err_msg=name)
