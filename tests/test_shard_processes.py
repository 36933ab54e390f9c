"""Conversions that a signal, a death or a slow start befalls."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from dataset.conversion import convert as convert_module
from dataset.conversion import shard_processes, shards
from dataset.conversion.coco import read_coco
from dataset.conversion.put_off_signals import Interrupted, PutOffSignals
from dataset.conversion.shards import ConversionConfig, convert

ROOT = Path(__file__).resolve().parent.parent
COUNT = 10
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def place(tmp_path):
    """A folder with ten images, each with a box."""
    (tmp_path / "images").mkdir()
    for number in range(COUNT):
        Image.new("RGB", (64, 48), (number, 100, 200)).save(tmp_path / "images" / f"{number}.jpg")
    (tmp_path / "a.json").write_text(json.dumps({
        "images": [{"id": number, "file_name": f"{number}.jpg", "width": 64, "height": 48} for number in range(COUNT)],
        "annotations": [{"id": number + 1, "image_id": number, "category_id": 5, "bbox": [1, 2, 33, 34]}
                        for number in range(COUNT)],
        "categories": [{"id": 5, "name": "box"}]}))
    return tmp_path


_heard = threading.Event()  # by the thread that listens: on a busy machine that takes its time


@pytest.fixture(autouse=True)
def heeded(monkeypatch):
    """What a shell starts in the background inherits that Ctrl-C is ignored."""
    real = PutOffSignals._heard

    def heard(self, number):
        real(self, number)
        _heard.set()

    monkeypatch.setattr(PutOffSignals, "_heard", heard)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def converted(place):
    return convert(read_coco(object_annotations_file=str(place / "a.json")), ConversionConfig(
        image_folder=str(place / "images"), output_prefix=str(place / "out" / "train"), num_shards=3, processes=1,
        max_bad_fraction=0.0))


def names(place):
    return sorted(path.name for path in (place / "out").iterdir())


def raised(number):
    """The signal comes to this thread, and the one that listens has heard it."""
    _heard.clear()
    signal.raise_signal(number)
    assert _heard.wait(60)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_among_the_images_is_raised_once_nothing_is_half_done(place, monkeypatch, number):
    real, count = convert_module.check_image, []

    def check(*arguments, **settings):
        count.append(1)
        if len(count) == 6:  # the second of shard 1
            raised(number)
        return real(*arguments, **settings)

    monkeypatch.setattr(convert_module, "check_image", check)
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught:
        converted(place)
    assert caught.value.number == number
    assert len(count) == 6
    assert names(place) == [".train-00000-of-00003.tfrecord.finished", ".train.conversion"]
    assert signal.getsignal(number) == handler
    assert converted(place).images == COUNT
    assert len(count) == 6 + 6  # the finished shard is kept


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_shards_get_their_names_waits_for_the_last_and_the_report(place, monkeypatch, number):
    real, renamed = os.replace, []

    def replace(source, target):
        if str(source).endswith(".finished"):
            renamed.append(target)
            if len(renamed) == 2:
                raised(number)
        return real(source, target)

    monkeypatch.setattr(shards.os, "replace", replace)
    with pytest.raises(Interrupted):
        converted(place)
    assert names(place) == [".train.conversion", *(f"train-0000{i}-of-00003.tfrecord" for i in range(3)),
                            "train.classes.json", "train.report.json"]


def signalled(steps, *, look=False, error=None):
    """A block that notes a signal, and how far it went."""
    with PutOffSignals() as signals:
        signals.check()
        raised(signal.SIGTERM)
        steps.append("noted")
        if look:
            signals.check()
        if error:
            raise error
        steps.append("end")


@pytest.mark.parametrize(("settings", "wanted", "steps"), [
    ({"look": True}, Interrupted, ["noted"]), ({}, Interrupted, ["noted", "end"]),
    ({"error": KeyError()}, KeyError, ["noted"])])  # what went wrong is told before what was wished
def test_noted_signals_are_raised_by_a_look_or_at_the_end(settings, wanted, steps):
    found = []
    with pytest.raises(wanted):
        signalled(found, **settings)
    assert found == steps


@pytest.mark.parametrize(("first", "second"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)])
def test_a_second_signal_ends_the_process_at_once(first, second):
    code = f"""
import signal, time
from dataset.conversion.put_off_signals import PutOffSignals
with PutOffSignals(at_the_second=lambda: print("second", flush=True)):
    for number in {[int(first), int(second)]}:
        signal.raise_signal(number)
        time.sleep(0.5)
        print("goes on", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
                          preexec_fn=heeding_ctrl_c)
    assert done.stdout.split("\n") == ["goes on", "second", ""]
    assert done.returncode == 128 + second
    assert done.stderr == "ended at once; the same command clears up and continues\n"


def heeding_ctrl_c():
    """In a child, see `heeded`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def started(place, *, processes, **environment):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "dataset" / "create_coco_tfrecord.py"), f"--image_dir={place / 'images'}",
         f"--object_annotations_file={place / 'a.json'}", f"--output_file_prefix={place / 'out' / 'train'}",
         "--num_shards=3", f"--num_threads={processes}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=heeding_ctrl_c, env={**os.environ, **environment})


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
    """Whether it is there and no zombie that waits for somebody to ask for its exit code."""
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
@pytest.mark.parametrize(("how", "exit_codes", "line"), [
    ("kill a worker", {2}, r"create_coco_tfrecord.py: error: a converting process died.*"),
    ("ctrl-c", {130}, r"interrupted; finished shards are kept.*"),
    ("SIGTERM to all", {143}, r"interrupted; finished shards are kept.*"),
    ("SIGTERM to the first", {143}, r"interrupted; finished shards are kept.*"),
    ("two at once", {130, 143}, r"(ended at once; the same command|interrupted; finished).*")])
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
