"""The image without a Docker engine: what the Dockerfile promises, and its shell steps in a clean folder."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def instructions():
    """(name, rest) of each instruction, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.strip().split(None, 1)) for line in lines if line.strip()]


def of(name):
    return [rest for found, rest in instructions() if found == name]


def test_base_is_pinned_and_public():
    [base] = of("FROM")
    assert re.fullmatch(r"nvidia/cuda:\d+\.\d+\.\d+-cudnn-devel-ubuntu24\.04", base)


def test_runs_as_somebody_who_is_not_root():
    assert of("USER")[-1] == "effdet"
    names = [name for name, _ in instructions()]
    assert names[-1] == "CMD"


def test_what_is_copied_is_there():
    for rest in of("COPY"):
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (REPOSITORY / source).exists(), source


def test_horovod_is_built_before_the_code_is_copied():
    steps = [rest for name, rest in instructions() if name in ("RUN", "COPY")]
    build = next(i for i, rest in enumerate(steps) if "install_horovod.sh" in rest and "source" in rest)
    everything = next(i for i, rest in enumerate(steps) if rest.endswith(". ."))
    assert build < everything


def test_environment_and_outputs_stay_out():
    ignored = (REPOSITORY / ".dockerignore").read_text().split()
    assert {".git", ".venv", "build"} <= set(ignored)
    assert not {"scripts", "testdata", "model", "dataset"} & set(ignored)


@pytest.mark.parametrize("step", of("RUN"))
def test_shell_steps_are_shell(step):
    done = subprocess.run(["sh", "-n", "-c", step], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_packages_installed_are_those_named(tmp_path):
    """pip takes the empty folders of the layer that holds the packages for ours."""
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, tmp_path)
    [step] = [rest for rest in of("RUN") if rest.startswith("mkdir dataset")]
    subprocess.run(["sh", "-ec", step.split("&& bash")[0]], check=True, cwd=tmp_path)
    done = subprocess.run([sys.executable, "-c", "from setuptools import setup; setup()", "-q", "egg_info"], cwd=tmp_path,
                          capture_output=True, text=True)
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("setuptools is not installed here")
    assert done.returncode == 0, done.stderr
    top = (tmp_path / "efficientdet_tf2.egg-info" / "top_level.txt").read_text().split()
    assert set(top) == {"dataset", "efficientdet", "model", "object_detection", "train", "eval", "infer", "inspector",
                        "export", "quickstart", "serve"}


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="OpenSSH is not installed")
def test_sshd_starts_as_a_user_on_its_port(tmp_path):
    [step] = [rest for rest in of("RUN") if "sshd_config" in rest]
    subprocess.run(["sh", "-ec", step], check=True, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True)
    config = (tmp_path / ".sshd_config").read_text()
    assert "Port 2222\n" in config
    assert (tmp_path / ".sshd" / "host_key").is_file()
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd:
        done = subprocess.run([sshd, "-t", "-f", str(tmp_path / ".sshd_config")], capture_output=True, text=True)
        assert done.returncode == 0 or "/run/sshd" in done.stderr, done.stderr
    assert of("EXPOSE") == ["2222"]


def test_the_health_check_passes_here():
    [check] = of("HEALTHCHECK")
    command = check.split("CMD ", 1)[1].replace(".venv/bin/python", sys.executable)
    done = subprocess.run(["sh", "-c", command], cwd=REPOSITORY, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "efficientdet-d0" in done.stdout
    broken = command.replace("efficientdet-d0", "efficientdet-d99")
    assert subprocess.run(["sh", "-c", broken], cwd=REPOSITORY, capture_output=True, timeout=200).returncode == 1


def test_the_command_is_a_list():
    assert json.loads(of("CMD")[0]) == ["bash"]
