"""Conversions that a signal, a death or a slow start befalls."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import pytest
from heeded_signals import heeding_ctrl_c
from PIL import Image

from dataset.conversion import shard_processes

ROOT = Path(__file__).resolve().parent.parent
COUNT = 10
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def place(tmp_path):
    """A folder with ten images, each with a box."""
    (tmp_path / "images").mkdir()
    for number in range(COUNT):
        Image.new("RGB", (64, 48), (number, 100, 200)).save(tmp_path / "images" / f"{number}.jpg")
    (tmp_path / "a.json").write_text(
        json.dumps(
            {
                "images": [
                    {"id": number, "file_name": f"{number}.jpg", "width": 64, "height": 48} for number in range(COUNT)
                ],
                "annotations": [
                    {"id": number + 1, "image_id": number, "category_id": 5, "bbox": [1, 2, 33, 34]}
                    for number in range(COUNT)
                ],
                "categories": [{"id": 5, "name": "box"}],
            }
        )
    )
    return tmp_path


def outcome(scenario, *arguments):
    """What `tests/signal_scenarios.py` reports of a scenario; in a process of its own, which a signal may end."""
    command = [sys.executable, ROOT / "tests" / "signal_scenarios.py", scenario, *arguments]
    done = forked_programs.run(command, env=os.environ, cwd=ROOT)
    assert done.returncode == 0, f"{scenario} ended with exit code {done.returncode}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def names(place):
    return sorted({path.name for path in (place / "out").iterdir()} - {".outputs_of_efficientdet.json"})


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_among_the_images_is_raised_once_nothing_is_half_done(place, number):
    found = outcome("among_the_images", place, int(number), 6)  # the second image of shard 1
    assert found == {
        "raised": number,
        "checked": 6,
        "handler_is_back": True,
        "images_of_the_next": COUNT,
        "checked_in_all": 12,
        "names": [".train-00000-of-00003.tfrecord.finished", ".train.conversion"],
    }  # the finished shard is kept


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_shards_get_their_names_waits_for_the_last_and_the_report(place, number):
    assert outcome("while_shards_get_their_names", place, int(number)) == {"raised": number}
    assert names(place) == [
        ".train.conversion",
        *(f"train-0000{i}-of-00003.tfrecord" for i in range(3)),
        "train.classes.json",
        "train.report.json",
    ]


@pytest.mark.parametrize(
    ("what", "wanted", "steps"),
    [("look", "Interrupted", ["noted"]), ("nothing", "Interrupted", ["noted", "end"]), ("fail", "KeyError", ["noted"])],
)  # what went wrong is reported before what was wished
def test_noted_signals_are_raised_by_a_look_or_at_the_end(what, wanted, steps):
    assert outcome("noted", what) == {"raised": wanted, "steps": steps}


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_a_busy_machine_tells_late_is_raised_all_the_same(number):
    """The block is left before the thread that listens has read of it."""
    assert outcome("heard_late", int(number)) == {"raised": number}


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_the_process_at_once(first, second):
    code = f"""
import signal, time
from program_support.signals import DeferredSignals
with DeferredSignals(on_second_signal=lambda: print("second", flush=True)):
    for number in {[int(first), int(second)]}:
        signal.raise_signal(number)
        time.sleep(0.5)
        print("continues", flush=True)
"""
    done = subprocess.run(
        heeding_ctrl_c([sys.executable, "-c", code]), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n") == ["continues", "second", ""]
    assert done.returncode == 128 + second
    assert done.stderr == "exited immediately; run the same command again to clean up and resume\n"


def started(place, *, processes, **environment):
    command = [
        sys.executable,
        str(ROOT / "dataset" / "create_coco_tfrecord.py"),
        f"--image_dir={place / 'images'}",
        f"--object_annotations_file={place / 'a.json'}",
        f"--output_file_prefix={place / 'out' / 'train'}",
        "--num_shards=3",
        f"--num_threads={processes}",
    ]
    return subprocess.Popen(
        heeding_ctrl_c(command),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def until(condition, process):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_tensorflow_is_imported_is_one_line_at_once(place, number):
    """A TensorFlow that takes a minute to import."""
    (place / "tensorflow.py").write_text(f"import time\nopen('{place}/importing', 'w').close()\ntime.sleep(60)\n")
    process = started(place, processes=1, PYTHONPATH=str(place))
    until((place / "importing").exists, process)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert re.fullmatch(r"create_coco_tfrecord\.py: ended by \S+\n", errors), errors
    assert names(place) == [".train.conversion"]


def children_of(pid):
    """Processes that convert: multiprocessing's own resource tracker is none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def is_running(pid):
    """Whether it is there and no zombie that waits for a user to ask for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(process, how):
    """Bring about one sudden end."""
    if how == "kill a worker":
        os.kill(children_of(process.pid)[0], signal.SIGKILL)
    elif how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    elif how == "SIGTERM to all":
        os.killpg(process.pid, signal.SIGTERM)
    elif how == "SIGTERM to the first":
        os.kill(process.pid, signal.SIGTERM)
    else:
        os.killpg(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the children in /proc")
@pytest.mark.parametrize(
    ("how", "exit_codes", "line"),
    [
        ("kill a worker", {2}, r"create_coco_tfrecord.py: error: a worker process died.*"),
        ("ctrl-c", {130}, r"interrupted; finished shards are kept.*"),
        ("SIGTERM to all", {143}, r"interrupted; finished shards are kept.*"),
        ("SIGTERM to the first", {143}, r"interrupted; finished shards are kept.*"),
        ("two at once", {130, 143}, r"(exited immediately; run the same command|interrupted; finished).*"),
    ],
)
def test_sudden_end_is_one_line_and_leaves_nothing(place, how, exit_codes, line):
    process = started(place, processes=2)
    until(lambda: len(children_of(process.pid)) == 2, process)
    children = children_of(process.pid)
    end(process, how)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in exit_codes
    assert re.fullmatch(line, errors.strip()), errors
    assert [name for name in names(place) if name != ".train.conversion"] == []
    assert not [child for child in children if is_running(child)]


def test_children_inherit_that_ctrl_c_is_blocked():
    with shard_processes._starting_children():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
