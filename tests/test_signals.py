"""Ctrl-C and SIGTERM at any moment: one line, the shell's exit code, never a traceback."""

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

from program_support import startup

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = [
    *sorted(path.name for path in ROOT.glob("*.py")),
    *(f"dataset/{path.name}" for path in sorted((ROOT / "dataset").glob("create_*.py"))),
    "dataset/synthetic.py",
]
# What a compilation or a long step looks like to Python: a call that gives the interpreter up and does not come back.
BUSY = "import hashlib; print('busy', flush=True); hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)"


def ended(arguments, *signals, env=None, pause=0.8):
    """(exit code, stdout, stderr) of a process that gets the signals one after the other once it reports to be busy."""
    process = subprocess.Popen(
        heeding_ctrl_c([sys.executable, *map(str, arguments)]),
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "busy\n", process.communicate(timeout=60)
        for number in signals[:-1]:
            process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=pause)
        process.send_signal(signals[-1])
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in errors
    return process.returncode, output, errors


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
def test_ends_at_once_whatever_it_does(number, code, name):
    start = "from program_support.command_line import run"
    program = f"{start}\ndef main():\n    {BUSY}\nrun(main, ['a/x.py'], ends_at_once=True)"
    assert ended(["-c", program], number) == (code, "", f"x.py: ended by {name}\n")


def test_what_has_to_tidy_up_gets_an_exception():
    program = (
        "from program_support.command_line import run\nimport time\n"
        "def main():\n    try:\n        print('busy', flush=True)\n"
        "        time.sleep(60)\n    finally:\n        print('tidy')\nrun(main, ['x.py'])"
    )
    assert ended(["-c", program], signal.SIGINT) == (130, "tidy\n", "x.py: ended by Ctrl-C\n")


def test_a_signal_that_was_ignored_stays_ignored():
    program = (
        "import os, signal, time\nfrom program_support.signals import Listener\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "heard = []\nlistener = Listener(heard.append).start()\n"
        "os.kill(os.getpid(), signal.SIGINT)\nos.kill(os.getpid(), signal.SIGTERM)\n"
        "while not heard:\n    time.sleep(0.01)\n"
        "listener.stop()\nprint(heard, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[15] True\n", done.stderr


def test_the_one_who_listened_before_hears_again():
    program = (
        "import os, signal, time\nfrom program_support.signals import Listener\nouter, inner = [], []\n"
        "first = Listener(outer.append).start()\nsecond = Listener(inner.append).start()\n"
        "def send(number, heard):\n    os.kill(os.getpid(), number)\n    while number not in heard:\n"
        "        time.sleep(0.01)\n"
        "send(2, inner)\nsecond.stop()\nsend(15, outer)\nprint(outer, inner)"
    )
    done = subprocess.run(
        heeding_ctrl_c([sys.executable, "-c", program]), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[15] [2]\n", done.stderr


# --- a training, which first saves

TRAINING = {**os.environ, "PYTHONPATH": str(ROOT)}


def stopping_training(*, unsaved, then=BUSY, ranks=1):
    return (
        "from efficientdet.training import interruption\nfrom efficientdet.devices.distributed import World\n"
        f"with interruption.StopRequest(World(size={ranks}), saved_step=lambda: 7, unsaved_steps=lambda: {unsaved}, "
        "patience=0.3, report_after=0.3) as stop_request:\n"
        f"    {then}"
    )


def ended_training(folder, program, *signals, pause=0.8):
    """Return what `ended` does; in a fork, as the packages of a training take seconds to import."""
    (folder / "training.py").write_text(program)
    output, errors = folder / "output", folder / "errors"
    process = forked_programs.ForkedProgram(
        [sys.executable, folder / "training.py"], env=TRAINING, cwd=ROOT, stdout=output, stderr=errors
    )
    try:
        while output.read_text() != "busy\n":
            assert process.poll() is None, errors.read_text()
            time.sleep(0.01)
        for number in signals[:-1]:
            process.send_signal(number)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=pause)
        process.send_signal(signals[-1])
        code = process.wait(timeout=60)
    finally:
        process.kill_session()
    assert "Traceback" not in errors.read_text()
    return code, output.read_text().removeprefix("busy\n"), errors.read_text()


def test_where_nothing_is_lost_a_training_ends_soon(tmp_path):
    assert ended_training(tmp_path, stopping_training(unsaved=0), signal.SIGTERM) == (
        143,
        "",
        "stop requested: saved after step 7; --resume=auto, the default, resumes from there\n",
    )


def test_a_second_signal_ends_at_once_and_the_first_says_so(tmp_path):
    code, _, errors = ended_training(tmp_path, stopping_training(unsaved=3), signal.SIGTERM, signal.SIGINT)
    assert code == 130
    first, second = errors.splitlines()
    assert re.fullmatch(
        r"stop requested: saving after .*; send the signal again .* and lose the 3 steps since .*", first
    )
    assert second == "stopped immediately: saved after step 7; --resume=auto, the default, resumes from there"


def test_several_ranks_wait_for_a_first_step_and_say_so(tmp_path):
    code, _, errors = ended_training(tmp_path, stopping_training(unsaved=0, ranks=2), signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert errors.splitlines() == [
        "stop requested: saving after the current step; send the signal again to exit immediately",
        "stopped immediately: saved after step 7; --resume=auto, the default, resumes from there",
    ]


def test_one_ctrl_c_that_comes_twice_is_one(tmp_path):
    then = (
        "import os\n    [os.kill(os.getpid(), n) for n in (2, 15)]\n    import time; time.sleep(0.4)\n"
        "    print(stop_request.requested)"
    )
    (tmp_path / "training.py").write_text(stopping_training(unsaved=3, then=then))
    done = forked_programs.run([sys.executable, tmp_path / "training.py"], env=TRAINING, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


class _Ranks:
    """Two ranks, of which the other one says what it was told to."""

    size, is_first = 2, True

    def __init__(self, other):
        self.other = other

    def gather(self, value):
        return [value, self.other]


def test_all_ranks_leave_together():
    from efficientdet.training.interruption import Interrupted, StopRequest

    with StopRequest(_Ranks(other=False), saved_step=int, unsaved_steps=int) as stop_request:
        assert list(stop_request.interruptible("abc")) == ["a", "b", "c"]
    with StopRequest(_Ranks(other=True), saved_step=int, unsaved_steps=int) as stop_request:
        items = stop_request.interruptible("abc")
        assert [next(items) for _ in range(3)] == ["a", "b", "c"]  # its own share is done
        with pytest.raises(Interrupted) as ended:
            next(items)
    assert ended.value.signal == signal.SIGTERM


# --- the programs, while they start


@pytest.fixture(scope="module")
def slow_imports(tmp_path_factory):
    """tensorflow and keras take for ever to import; standard error may be led elsewhere meanwhile."""
    folder = tmp_path_factory.mktemp("slow")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text(BUSY)
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    from dataset.class_names import ClassNames

    folder = tmp_path_factory.mktemp("data")
    for name in ("train-00000-of-00001.tfrecord", "a.jpg", "ckpt.index"):
        (folder / name).touch()
    ClassNames((1, 7), ("cat", "dog")).write(folder / "train.classes.json")
    return folder


@pytest.mark.parametrize(("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")])
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("train.py", ("--training_file_pattern={}/train-*", "--model_dir={}/out")),
        ("eval.py", ("--val_file_pattern={}/train-*", "--ckpt={}/ckpt")),
        ("infer.py", ("--image_path={}/a.jpg", "--model_dir={}/ckpt", "--output_dir={}/out")),
        ("inspector.py", ("--mode=benchmark",)),
    ],
)
def test_while_tensorflow_is_imported(slow_imports, data, program, arguments, number, code, name):
    arguments = [ROOT / program, *(argument.format(data) for argument in arguments)]
    assert ended(arguments, number, env=slow_imports) == (code, "", f"{program}: ended by {name}\n")


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_among_the_first_imports_prints_nothing(tmp_path, program):
    """Before anything of ours listens: as a shell sees it, 130."""
    (tmp_path / "absl").mkdir()
    (tmp_path / "absl" / "__init__.py").write_text(BUSY)
    (tmp_path / "absl" / "flags.py").touch()
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    assert ended(_words(program), signal.SIGINT, env=env) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_environment_is_one_line(program):
    """As `/usr/bin/python3 train.py`, an interpreter without packages; -S: without site-packages."""
    done = subprocess.run([sys.executable, "-S", *_words(program)], cwd=ROOT, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"{program.rpartition('/')[2]}: error: {sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]}) "
        "lacks the package absl; run: source .venv/bin/activate (bash scripts/install.sh creates it)\n"
    )


def test_tensorflow_is_no_condition(monkeypatch):
    """A benchmark of the network under JAX needs none."""
    monkeypatch.setattr(startup.signal, "signal", lambda *_: None)
    monkeypatch.setattr(startup.importlib.util, "find_spec", lambda name: None if name == "tensorflow" else name)
    startup.before_imports()


@pytest.mark.parametrize("program", ["doctor.py", "dataset/synthetic.py"])
def test_another_locale_does_not_change_the_names_of_files(program):
    """C without Python's replacement of it stands for de_DE.ISO-8859-1, which few machines have."""
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": str(ROOT)}
    words = [*_words(program), "--m\u00e4rz"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, encoding="utf-8")
    assert (done.returncode, "unknown flag --m\u00e4rz" in done.stderr) == (2, True)


def _words(program):
    """Return what follows `python` in the command of a program."""
    return [program] if program != "dataset/synthetic.py" else ["-m", "dataset.synthetic"]
