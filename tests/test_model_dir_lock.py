"""One training at a time in a model_dir."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from efficientdet.devices.distributed import World
from efficientdet.training.model_dir_lock import sole_training
from program_support import file_lock
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
HOLD = (
    "import sys, time; from efficientdet.devices.distributed import World\n"
    "from efficientdet.training.model_dir_lock import sole_training\n"
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
    folder = tmp_path / "model"
    with subprocess.Popen([sys.executable, "-c", HOLD, folder], cwd=ROOT, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(InputError) as refused, sole_training(str(folder), World()):
            pass
        assert str(refused.value).startswith(f"{folder}: another training (process {first.pid} on ")
        assert "\n" not in str(refused.value)
        first.send_signal(signal.SIGKILL)
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
