"""scripts/environment.sh with interpreters that are shell scripts: what it makes, reuses and reports, offline."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A Python of a given version, with or without the venv module, whose pip only writes down what it was asked for.
PYTHON = """#!/bin/bash
case "$*" in
--version) echo "Python {version}" ;;
*"sys.exit(not (3, 11)"*) exit {unsuitable} ;;
*"%d.%d"*) echo {version} ;;
*"import ensurepip, venv"*) exit {lacks_venv} ;;
"-m venv --clear "*) mkdir -p "$4/bin" && touch "$4/pyvenv.cfg" && cp "$0" "$4/bin/python" && sleep 0.2 ;;
"-m pip --version") case "$0" in */.venv/bin/python) exit 0 ;; esac; exit 1 ;;
"-m pip install "*) echo "${{*: -1}} in $PWD" >>"$PWD/pip-calls"; {pip} ;;
*) exit 9 ;;
esac
"""


@pytest.fixture
def root(tmp_path):
    """A repository in a folder with a space in its name."""
    folder = tmp_path / "a b" / "repository"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "environment.sh", folder / "scripts")
    (folder / "pyproject.toml").write_text("one\n")
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "sleep", "flock", "sha256sum", "dirname", "mkdir", "touch", "cp", "rm", "tail", "grep"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return folder


def add_python(root, name="python3", *, version="3.12", unsuitable=0, lacks_venv=0, pip="exit 0"):
    path = root.parent.parent / "bin" / name
    path.write_text(PYTHON.format(version=version, unsuitable=unsuitable, lacks_venv=lacks_venv, pip=pip))
    path.chmod(0o755)


def start(root, extra=""):
    script = f'set -euo pipefail; source "{root}/scripts/environment.sh"; use_environment {extra}; echo "ready $PYTHON"'
    return subprocess.Popen(
        ["bash", "-c", script, "/x/demo.sh"],
        cwd="/",
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": str(root.parent.parent / "bin"), "HOME": os.environ["HOME"]},
    )


def call(root, extra=""):
    process = start(root, extra)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def pip_calls(root):
    return (root / "pip-calls").read_text().splitlines()


def test_makes_installs_and_reuses(root):
    add_python(root)
    code, out, err = call(root)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"making {root}/.venv with Python 3.12"
    assert out.splitlines()[-1] == f"ready {root}/.venv/bin/python"
    assert call(root) == (0, f"ready {root}/.venv/bin/python\n", "")
    assert pip_calls(root) == [f". in {root}"]


def test_installs_again_for_another_extra_a_changed_project_or_a_moved_folder(root):
    add_python(root)
    for extra in ("", "test", "", "test"):
        assert call(root, extra)[0] == 0
    assert len(pip_calls(root)) == 2
    (root / "pyproject.toml").write_text("two\n")
    call(root, "test")
    moved = root.with_name("moved")
    root.rename(moved)
    call(moved, "test")
    assert pip_calls(moved) == [f". in {root}", f".[test] in {root}", f".[test] in {root}", f".[test] in {moved}"]


def test_two_calls_at_once_install_once(root):
    add_python(root, pip="sleep 0.5")
    processes = [start(root), start(root)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    assert len(pip_calls(root)) == 1
    for process in processes:
        process.communicate()


def test_prefers_the_newest_and_passes_over_a_shim_without_python(root):
    add_python(root, "python3.13", unsuitable=127)
    add_python(root, "python3.12", lacks_venv=1)
    add_python(root, "python3.11", version="3.11")
    add_python(root, "python3", version="3.9", unsuitable=1)
    assert f"making {root}/.venv with Python 3.11" in call(root)[1]


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (None, "no Python 3.11 to 3.13 found"),
        (
            {"version": "3.9", "unsuitable": 1},
            "no Python 3.11 to 3.13 found (Python 3.9); install one, for example: apt install",
        ),
        (
            {"lacks_venv": 1},
            "python3 lacks its venv module; install it, for example: apt install python3-venv python3.12-venv",
        ),
    ],
)
def test_what_to_install(root, python, message):
    if python:
        add_python(root, **python)
    code, out, err = call(root)
    assert (code, out) == (2, "")
    assert err.startswith("demo.sh: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (root / ".venv").exists()


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (
            "echo 'ERROR: No matching distribution found for x'; exit 1",
            "cannot install: No matching distribution found for x",
        ),
        ("echo 'Failed to establish a new connection'; echo 'ERROR: x'; exit 1", "package index cannot be reached"),
        ("echo 'OSError: No space left on device'; exit 1", "no space left"),
    ],
)
def test_failed_install_is_one_line_and_tried_again(root, pip, message):
    add_python(root, pip=pip)
    code, _, err = call(root)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert call(root)[0] == 2
    assert len(pip_calls(root)) == 2


def test_folder_that_is_no_environment_is_left_alone(root):
    add_python(root)
    (root / ".venv").mkdir()
    (root / ".venv" / "precious").touch()
    code, _, err = call(root)
    assert code == 2
    assert "exists but is not a Python environment; move it away" in err
    assert (root / ".venv" / "precious").exists()


def test_environment_of_an_old_python_is_refused(root):
    add_python(root)
    call(root)
    add_python(root, version="3.9", unsuitable=1)
    shutil.copy(root.parent.parent / "bin" / "python3", root / ".venv" / "bin" / "python")
    code, _, err = call(root)
    assert code == 2
    assert ".venv has Python 3.9; expected Python 3.11 to 3.13: remove that folder" in err


def install(root, *extras):
    """install.sh of a repository whose extras are `serve` and `onnx-export`."""
    for name in ("install.sh", "usage.sh"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[project.optional-dependencies]\n# of a server\n'
        'serve = ["a"]\nonnx-export = [\n    "b",\n]\n[tool.x]\nother = 1\n'
    )
    done = subprocess.run(
        ["bash", root / "scripts" / "install.sh", *extras],
        cwd="/",
        text=True,
        capture_output=True,
        check=False,
        env={"PATH": str(root.parent.parent / "bin"), "HOME": os.environ["HOME"]},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("extras", "asked"), [([], "."), (["serve"], ".[serve]"), (["onnx-export", "serve"], ".[onnx-export,serve]")]
)
def test_extras_are_installed(root, extras, asked):
    add_python(root)
    assert install(root, *extras) == (0, "")
    assert pip_calls(root) == [f"{asked} in {root}"]


@pytest.mark.parametrize("extra", ["serv", "other", "serve,onnx-export", "", "--upgrade"])
def test_an_unknown_extra_is_one_line(root, extra):
    add_python(root)
    assert install(root, "serve", extra) == (
        2,
        f"install.sh: error: found extra '{extra}'; expected names among serve, onnx-export\n",
    )
    assert not (root / ".venv").exists()


def test_the_files_of_quick_exist_and_have_no_slow_test():
    names = [line for line in (ROOT / "tests" / "quick.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)) > 50
    assert not [name for name in names if "mark.slow" in (ROOT / "tests" / name).read_text()]
