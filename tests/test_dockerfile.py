"""The image without a Docker engine: what the Dockerfile promises, and its shell steps in a clean folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


def instructions():
    """(name, rest) of each instruction, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [tuple(line.strip().split(None, 1)) for line in lines if line.strip()]


def of(name, stage=None):
    """What follows an instruction's name, in both stages, in the first (0) or in the image (1)."""
    number, found = -1, []
    for one, rest in instructions():
        number += one == "FROM"
        if one == name and stage in (None, number):
            found.append(rest)
    return found


def settings(stage):
    return dict(word.split("=", 1) for rest in of("ENV", stage) for word in shlex.split(rest))


def packages(stage):
    """What apt installs."""
    [step] = [rest for rest in of("RUN", stage) if "apt-get" in rest]
    return set(step.split("--no-install-recommends")[1].split("&&")[0].split())


def test_bases_are_pinned_by_digest():
    bases = dict(rest.split("=", 1) for rest in of("ARG"))
    assert of("FROM") == ["${BUILD_BASE} AS build", "${BASE}"]
    assert re.fullmatch(r"nvidia/cuda:12\.\d+\.\d+-devel-ubuntu24\.04@sha256:[0-9a-f]{64}", bases["BUILD_BASE"])
    assert re.fullmatch(r"ubuntu:24\.04@sha256:[0-9a-f]{64}", bases["BASE"])  # without CUDA: .venv has it


def test_the_image_has_no_tools_of_the_build():
    tools = {name for name in packages(1) if name.endswith("-dev") or name in ("build-essential", "cmake", "git")}
    assert tools == set()
    assert {"openmpi-bin", "openssh-server", "curl", "unzip", "ca-certificates", "python3.12", "wget"} <= packages(1)
    copied = [rest for rest in of("COPY", 1) if "--from=" in rest]
    assert copied == ["--from=build --chown=1000:1000 /workspace/effdet-tf2/.venv .venv"]


def test_environments_are_alike_in_both_stages():
    """A virtual environment holds absolute paths and links to its Python."""
    assert of("WORKDIR", 0) == of("WORKDIR", 1) == ["/workspace/effdet-tf2"]
    assert {f"python3.12-{kind}" for kind in ("dev", "venv")} <= packages(0)
    assert settings(0)["PIP_NO_CACHE_DIR"] == settings(1)["PIP_NO_CACHE_DIR"] == "1"


def test_the_image_has_what_jobs_ask_for():
    [step] = [rest for rest in of("RUN", 0) if "use_environment" in rest]
    extras = re.search(r"use_environment ([a-z,-]+)", step)[1].split(",")
    # Both engines of the recipes and of the manifests; --mlperf_log of the six jobs and of the recipes; rayjob.yaml
    assert set(extras) == {"cuda", "jax-cuda", "mlperf", "ray-jobs"}
    known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) <= set(known)
    assert settings(1)["LD_LIBRARY_PATH"]  # mpirun -x warns of a variable that is not set
    assert settings(1)["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.0"
    assert not of("HEALTHCHECK")


def test_hadolint_finds_nothing():
    program = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("hadolint is not installed here")
    done = subprocess.run(
        [program, "--no-color", "--failure-threshold=info", "Dockerfile"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_runs_as_somebody_who_is_not_root():
    assert of("USER") == ["1000"]  # a number, which Kubernetes' runAsNonRoot can judge
    assert any("useradd --create-home --uid 1000" in rest for rest in of("RUN", 1))
    names = [name for name, _ in instructions()]
    assert names[-1] == "CMD"


def test_what_is_copied_is_there():
    for rest in of("COPY"):
        if "--from=" in rest:
            continue
        *sources, _ = [word for word in rest.split() if not word.startswith("--")]
        for source in sources:
            assert (REPOSITORY / source).exists(), source


def test_the_packages_installed_are_those_named(tmp_path):
    """pip takes the empty folders of the layer that holds the packages for ours."""
    for name in ("pyproject.toml", "README.md", "scripts/wheel_layout.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    assert any(rest.split()[-1] == "scripts/" and "scripts/wheel_layout.py" in rest.split() for rest in of("COPY"))
    [step] = [rest for rest in of("RUN") if rest.startswith("mkdir dataset")]
    subprocess.run(["sh", "-ec", step.split("&& bash")[0]], check=True, cwd=tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools import setup; setup()", "-q", "egg_info"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    if "No module named 'setuptools'" in done.stderr:
        pytest.skip("setuptools is not installed here")
    assert done.returncode == 0, done.stderr
    top = (tmp_path / "efficientdet_tf2.egg-info" / "top_level.txt").read_text().split()
    done = subprocess.run(
        [sys.executable, "-c", "from setuptools import find_packages; print(*find_packages())"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )  # a namespace's `import efficientdet` is empty
    assert set(done.stdout.split()) == {"dataset", "efficientdet", "model", "object_detection", "program_support"}
    assert top == ["efficientdet"]
    modules = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "py-modules"
    ]
    assert sorted(file.stem for file in tmp_path.glob("*.py")) == sorted(modules)


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
