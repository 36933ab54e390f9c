"""Trainings that are killed, asked to stop, or left with damaged files: they continue as if nothing had happened."""

import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import pytest
from drawn_records import draw_records
from test_distributed import LAUNCHER, arguments_of, command, environment, launched, needs_horovod, run_ranks, succeeded

from efficientdet.checkpoints.checkpoint import read_arrays

pytestmark = pytest.mark.slow

SETTINGS = {
    "deterministic": True,
    "checkpoint_steps": 2,
    "batch_size": 4,
    "calibration_images": None,
}  # 3 epochs of 4 steps


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 16, "val": 1})


@pytest.fixture(scope="module")
def unbroken(drawn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    succeeded(run_ranks(1, drawn, folder, **SETTINGS)[0])
    return folder


def same_bits(folder, wanted):
    found, wanted = (read_arrays(str(place / "ckpt-final")) for place in (folder, wanted))
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name].tobytes() != wanted[name].tobytes()] == []


def start(drawn, folder, *, ranks=1, **settings):
    program = command(drawn, folder, **settings)
    if ranks == 1:
        return forked_programs.start(program, env=environment(), output=folder / "output.txt")
    with open(folder / "output.txt", "a") as log:
        return subprocess.Popen(
            launched(ranks, program), stdout=log, stderr=log, env=environment(), start_new_session=True
        )


def wait_for(condition, process, *, seconds=180):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    raise AssertionError("waited too long")


def kill_session(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def steps_saved(folder):
    return {
        int(file.name.split("-")[1].split(".")[0]) for file in folder.glob("ckpt-*.index") if "final" not in file.name
    }


def kill_and_restart(drawn, folder, *, kills, **settings):
    """Kill while a checkpoint is being written, or at any moment after one was, until so many kills are done."""
    chance, done = random.Random(kills), 0
    folder.mkdir(exist_ok=True)
    while done < kills:
        before = steps_saved(folder)
        process = start(drawn, folder, **settings)
        while_writing = done % 2 == 0

        def moment(before=before, while_writing=while_writing):
            return any(folder.glob(".ckpt-*")) if while_writing else steps_saved(folder) - before

        if not wait_for(moment, process):
            break  # it ended before it could be killed
        time.sleep(chance.uniform(0, 0.02 if while_writing else 0.3))
        kill_session(process)
        done += 1
    process = start(drawn, folder, **settings)
    assert process.wait(timeout=240) == 0, (folder / "output.txt").read_text()[-3000:]
    return done


def test_killed_at_random_moments_ends_with_the_same_bits(drawn, unbroken, tmp_path, request):
    kills = 10 if request.config.getoption("--endurance") else 2  # one while writing, one at any moment
    survived = kill_and_restart(drawn, tmp_path / "killed", kills=kills, **SETTINGS)
    print(f"kills survived: {survived}")
    assert survived >= 2
    assert "resumes from" in (tmp_path / "killed" / "output.txt").read_text()
    same_bits(tmp_path / "killed", unbroken)


@pytest.fixture
def copied(unbroken, tmp_path):
    """A copy of the finished training, with checkpoints after steps 8, 10 and 12."""
    return Path(shutil.copytree(unbroken, tmp_path / "model_dir"))


@needs_horovod
def test_two_ranks_killed_end_with_the_same_bits(drawn, tmp_path):
    settings = {**SETTINGS, "batch_size": 2, "calibration_images": 0}
    whole, killed = (tmp_path / name for name in ("whole", "killed"))
    trainings = [
        arguments_of(drawn, whole, **settings),
        arguments_of(drawn, killed, accident=[1, 3, "kill"], **settings),  # in the middle of an epoch,
    ]  # where each rank has statistics of its own
    program = [sys.executable, Path(__file__).with_name("several_trainings.py"), json.dumps(trainings), "[]"]
    done = subprocess.run(launched(2, program), capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"horovodrun: error: process 1 of 2, on {platform.node()}, ended: killed by SIGKILL, as the")
    # The launcher's SIGTERM may come before rank 0 has written its line.
    endings = ("process 0 of 2 has lost the connection to another process", "[0]<stderr>:Terminated")
    assert any(ending in done.stderr for ending in endings), done.stderr
    assert "Traceback" not in done.stderr
    assert steps_saved(killed) == {2}
    done, _ = run_ranks(2, drawn, killed, **settings)
    assert "ckpt-2 after step 2" in succeeded(done).stdout
    same_bits(killed, whole)
    assert len({(folder / f"digest-{rank}.txt").read_text() for folder in (whole, killed) for rank in (0, 1)}) == 1


@needs_horovod
def test_ranks_that_find_different_checkpoints_say_so(drawn, copied):
    done, _ = run_ranks(2, drawn, copied, without_folder=1, **{**SETTINGS, "batch_size": 2})
    assert done.returncode != 0
    assert "ranks found checkpoints of different steps (12, 0)" in done.stdout + done.stderr


SLOW_TO_END = """
import signal, sys, time

def save(*_):
    time.sleep(6)
    print("saved", flush=True)
    sys.exit(143)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(60)
"""


@needs_horovod
def test_the_launcher_waits_for_ranks_that_save(tmp_path):
    """Horovod alone kills after five seconds."""
    with open(tmp_path / "output.txt", "w") as log:
        process = subprocess.Popen(
            [*LAUNCHER, "-np", "2", sys.executable, "-c", SLOW_TO_END],
            stdout=log,
            stderr=log,
            env=environment(),
            start_new_session=True,
        )
    assert wait_for(lambda: (tmp_path / "output.txt").read_text().count("up") == 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert (tmp_path / "output.txt").read_text().count("saved") == 2


def test_asked_to_stop_saves_and_says_start_me_again(drawn, tmp_path):
    process = start(drawn, tmp_path, **{**SETTINGS, "calibration_images": 0})
    assert wait_for(lambda: steps_saved(tmp_path), process)
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    assert process.wait(timeout=60) == 143
    assert time.monotonic() - asked < 20
    assert "stop requested: saved after step" in (tmp_path / "output.txt").read_text()


@needs_horovod
def test_two_ranks_asked_to_stop_agree_and_save(drawn, tmp_path):
    process = start(drawn, tmp_path, ranks=2, **{**SETTINGS, "batch_size": 2, "calibration_images": 0}, stop_epoch=3)
    assert wait_for(lambda: steps_saved(tmp_path), process)
    process.send_signal(signal.SIGTERM)  # to the launcher, as Slurm and Kubernetes do
    assert process.wait(timeout=90) == 143, (tmp_path / "output.txt").read_text()[-3000:]
    assert (tmp_path / "output.txt").read_text().count("stop requested: saved after step") == 1
    read_arrays(str(tmp_path / "ckpt"))


@needs_horovod
def test_writing_for_longer_than_a_step_may_take_kills_nobody(drawn, tmp_path):
    done, _ = run_ranks(
        2,
        drawn,
        tmp_path,
        batch_size=4,
        checkpoint_steps=1,
        stop_epoch=1,
        slow_writing=9,
        env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6"},
    )
    succeeded(done)
    assert steps_saved(tmp_path) == {1, 2}


def test_damaged_checkpoints_are_passed_over(drawn, unbroken, copied):
    assert sorted(steps_saved(copied)) == [8, 10, 12]  # the last three
    data = copied / "ckpt-12.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    (copied / "ckpt-10.index").write_bytes((copied / "ckpt-10.index").read_bytes()[:-9])
    done, _ = run_ranks(1, drawn, copied, **SETTINGS)
    output = succeeded(done).stdout
    assert output.count("using the previous checkpoint") == 2
    assert f"resumes from {copied}/ckpt-8 after step 8" in output
    same_bits(copied, unbroken)


def test_never_puts_the_old_ones_aside(drawn, copied):
    done, _ = run_ranks(1, drawn, copied, stop_epoch=1, resume="never", **SETTINGS)
    assert "starts from scratch; the earlier checkpoints were moved to" in succeeded(done).stdout
    assert "resumes" not in done.stdout
    [aside] = copied.glob("before-*")
    assert (aside / "ckpt-12.index").exists()


def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(drawn, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs a file system of its own: root")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        done, _ = run_ranks(1, drawn, small, **{**SETTINGS, "checkpoint_steps": 1, "calibration_images": 0})
        assert done.returncode == 2, done.stderr[-2000:]
        assert "no space left on device" in done.stderr
        assert "Traceback" not in done.stderr
        assert steps_saved(small)
        for step in steps_saved(small):
            read_arrays(str(small / f"ckpt-{step}"))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
