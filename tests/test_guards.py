import errno
import os
import signal
import sys
import time
from pathlib import Path

import forked_programs
import numpy as np
import pytest

from efficientdet.devices.distributed import World
from efficientdet.training.guards import SKIPS_IN_A_ROW, StepFacts, StepGuard, check_collapse, sole_training
from program_support import file_lock
from program_support.errors import InputError

FACTS = StepFacts(step=7, learning_rate=0.08, image_ids=np.arange(100, 110))


def report(**changes):
    return {
        "cls_loss": 1.0,
        "loss": 1.0,
        "gradient_norm": 2.0,
        "positives": 3.0,
        "applied": 1.0,
        "finite": 1.0,
        **changes,
    }


def test_not_finite_names_step_rate_scale_and_images():
    with pytest.raises(
        InputError,
        match=r"step 7, learning rate 0\.08, images 100, .*107, \.\. "
        r"\(cls_loss nan.*gradient norm 2, loss scale 32768\)",
    ):
        StepGuard(global_batch_size=4).check(report(finite=0.0, cls_loss=float("nan"), loss_scale=32768.0), FACTS)


def test_one_overflow_is_normal_many_in_a_row_are_not():
    guard = StepGuard(global_batch_size=4)
    for _ in range(3):
        for _ in range(SKIPS_IN_A_ROW - 1):
            guard.check(report(applied=0.0), FACTS)
        guard.check(report(), FACTS)  # an applied step starts the count again
    for _ in range(SKIPS_IN_A_ROW - 1):
        guard.check(report(applied=0.0), FACTS)
    with pytest.raises(match=f"overflowed in {SKIPS_IN_A_ROW} consecutive steps, the last at step 7"):
        guard.check(report(applied=0.0), FACTS)


def test_no_positive_anchor():
    guard = StepGuard(global_batch_size=500)
    guard.check(report(positives=0.0), FACTS)
    with pytest.raises(InputError, match="no positive anchor in the first 1000 images"):
        guard.check(report(positives=0.0), FACTS)


@pytest.mark.parametrize(("ap", "best"), [(0.0, -1.0), (0.0, 0.04), (0.09, 0.3), (0.3, 0.1)])
def test_low_is_not_collapsed(ap, best):
    check_collapse(ap, best=best, epoch=3)


@pytest.mark.parametrize(("ap", "best"), [(0.0, 0.06), (0.05, 0.3), (-1.0, 0.3)])
def test_collapse(ap, best):
    with pytest.raises(InputError, match="epoch 3: AP fell to"):
        check_collapse(ap, best=best, epoch=3)


ROOT = Path(__file__).resolve().parent.parent
HOLD = (
    "import sys, time; from efficientdet.devices.distributed import World\n"
    "from efficientdet.training.guards import sole_training\n"
    "with sole_training(sys.argv[1], World()):\n    print('held', flush=True); time.sleep(60)\n"
)


class SecondRank(World):
    """Told by the first rank what became of the lock."""

    def __init__(self, told):
        super().__init__(rank=1, size=2)
        object.__setattr__(self, "told", told)

    def gather(self, value):
        assert value is None  # it does not lock anything itself
        return [self.told, value]


def test_a_second_training_is_refused_until_the_first_is_gone(tmp_path):
    folder, output = tmp_path / "model", tmp_path / "output"
    (tmp_path / "hold.py").write_text(HOLD)
    first = forked_programs.start(
        [sys.executable, tmp_path / "hold.py", folder],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        output=output,
    )
    try:
        while output.read_text() != "held\n":
            assert first.poll() is None, output.read_text()
            time.sleep(0.01)
        with pytest.raises(InputError) as refused, sole_training(str(folder), World()):
            pass
        assert str(refused.value).startswith(f"{folder}: another training (process {first.pid} on ")
        assert "\n" not in str(refused.value)
    finally:
        first.kill_session()
    assert first.wait(timeout=60) == -signal.SIGKILL
    for _ in range(2):  # again in the same process: the block releases it
        with sole_training(str(folder), World()) as warning:
            assert warning == ""
            assert (folder / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_other_ranks_hold_nothing_and_end_with_the_code_of_the_first(tmp_path):
    with sole_training(str(tmp_path), World()), sole_training(str(tmp_path), SecondRank(("", ""))) as warning:
        assert warning == ""
    with pytest.raises(SystemExit) as ended, sole_training(str(tmp_path), SecondRank(("another training writes", ""))):
        pass
    assert ended.value.code == 2


def test_without_locks_one_line_warns(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", no_locks)
    with sole_training(str(tmp_path), World()) as warning:
        assert warning.startswith(f"warning: {tmp_path}: no file locks here")
