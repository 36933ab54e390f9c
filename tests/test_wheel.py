"""The wheel, installed in a separate environment, in a folder whose files have the names of this project's folders."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from standins import environment

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
PACKAGES = ("dataset", "efficientdet", "model", "object_detection", "program_support")
BUILD = "import setuptools.build_meta as build; print(build.build_{kind}({folder!r}))"


def run(*words, folder, **variables):
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **variables},
    )


def checked(*words, folder, **variables):
    done = run(*words, folder=folder, **variables)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def build(kind, *, source, folder):
    built = checked(sys.executable, "-c", BUILD.format(kind=kind, folder=str(folder)), folder=source)
    return folder / built.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = [
        *PACKAGES,
        "scripts",
        *(file.name for file in ROOT.glob("*.py")),
        "pyproject.toml",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
    ]
    (folder / "checkout").mkdir()
    for name in tracked:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "checkout" / name)
    archive = build("sdist", source=folder / "checkout", folder=folder)
    shutil.unpack_archive(archive, folder, filter="data")
    return build("wheel", source=folder / archive.name.removesuffix(".tar.gz"), folder=folder)


@pytest.fixture(scope="module")
def commands(wheel, tmp_path_factory):
    """The folder with Python and the commands of an environment that has the wheel, and this one's other packages."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False)
    [packages] = root.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    checked(
        sys.executable,
        "-m",
        "pip",
        "--python",
        root / "bin" / "python",
        "install",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        "--no-compile",
        wheel,
        folder=root,
    )
    return root / "bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder: every top-level name of a checkout is there, and is the user's."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("dataset", "model", "object_detection", "program_support"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name}: not ours')")
    for program in ROOT.glob("*.py"):
        (folder / program.name).write_text("raise RuntimeError('program: not ours')")
    return folder


def test_one_name_at_the_top(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [metadata] = {name.split("/")[0] for name in names} - {"efficientdet"}
        assert archive.read(f"{metadata}/top_level.txt") == b"efficientdet\n"


def test_every_file_of_the_packages_is_in_it(wheel):
    """Also what is no Python: the page of the server, the classes of MLPerf."""
    files = {
        file.relative_to(ROOT).as_posix().removeprefix("efficientdet/")
        for name in PACKAGES
        for file in (ROOT / name).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    wanted = files - {"checkout.py"} | {f"programs/{file.name}" for file in ROOT.glob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        assert {
            name.removeprefix("efficientdet/") for name in archive.namelist() if ".dist-info/" not in name
        } == wanted


def test_every_command_shows_its_help(commands, folder):
    started = {
        name: subprocess.Popen(
            [commands / name, "--help"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in SCRIPTS
    }
    for name, process in started.items():
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, ""), name
        assert name in out.partition("\n\n\n")[0], name  # its own command line
        assert re.findall(r"(?:python|bash) \S+\.(?:py|sh)|python -m (?!efficientdet\.)\S+", out) == []


def test_a_mistake_is_one_line_under_the_name_of_the_command(commands, folder):
    done = run(commands / "efficientdet-train", "--batch_siz=3", folder=folder)
    assert (done.returncode, done.stderr) == (
        2,
        "efficientdet-train: error: unknown flag --batch_siz; the nearest is --batch_size\n",
    )


def test_the_names_are_the_users(commands, folder):
    code = "import efficientdet.model.weight_arrays, efficientdet.dataset.class_names; import model"
    done = run(commands / "python", "-c", code, folder=folder)
    assert done.stderr.endswith("RuntimeError: model: not ours\n"), done.stderr


@pytest.fixture(scope="module")
def records(commands, folder):
    """Drawn by a module, converted by a command in processes of its own."""
    checked(
        commands / "python",
        "-m",
        "efficientdet.dataset.synthetic",
        "--output_dir=drawn",
        "--train_images=4",
        "--val_images=1",
        "--image_size=64x64",
        folder=folder,
    )
    checked(
        commands / "efficientdet-convert",
        "--images=drawn/train",
        "--annotations=drawn/annotations/instances_train.json",
        "--output_dir=records",
        "--num_shards=2",
        "--num_threads=2",
        "--val_fraction=0",
        folder=folder,
    )
    return "records/train-*"


def test_conversion(records, folder):
    assert len(list(folder.glob(f"{records}.tfrecord"))) == 2


def test_quick_start_runs_the_programs_of_the_wheel(commands, folder):
    done = run(
        commands / "efficientdet-quickstart", "drawn", "--annotations=nowhere", "--output_dir=quick", folder=folder
    )
    assert done.returncode == 2
    log = (folder / "quick" / "quickstart.log").read_text()
    assert "$ python -P -m efficientdet.dataset.create_tfrecord --images=drawn" in log
    assert "create_tfrecord.py: error: --annotations=nowhere" in done.stderr


@pytest.mark.slow
def test_what_was_trained_is_loaded(commands, folder, records):
    """A family of another package, which uses modules of the wheel."""
    family = {"PYTHONPATH": environment(folder / "family")["PYTHONPATH"].removesuffix(f"{os.pathsep}{ROOT}")}
    checked(
        commands / "efficientdet-train",
        "--model_name=plain-dense",
        f"--training_file_pattern={records}",
        "--model_dir=run",
        "--training_mode=train300",
        "--batch_size=4",
        "--num_epochs=1",
        "--use_xla=False",
        folder=folder,
        **family,
    )
    run(
        commands / "efficientdet-export",
        "--ckpt=run",
        "--output_dir=exported",
        "--formats=onnx",
        folder=folder,
        **family,
    )  # its code: whether detections of random weights agree
    code = """for path in ("run", "exported/detector.onnx"):
    from efficientdet import load_detector
    import glob
    [found] = load_detector(path).predict(glob.glob("drawn/train/*.jpg")[:1], min_score=0)
    print(len(found.boxes) > 0)"""
    assert checked(commands / "python", "-c", code, folder=folder, **family).split() == ["True", "True"]


def rewritten(source):
    """What a build makes of a module; in a process of its own, as setuptools changes the process that imports it."""
    code = "import sys; from scripts.wheel_layout import rewritten; print(rewritten(sys.stdin.read(), 'x.py'), end='')"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=source, capture_output=True, text=True, check=False
    )


def test_a_build_rewrites_imports_and_command_lines_alone():
    source = (
        '"É: `python train.py`, python dataset/create_tfrecord.py, tf2/train.py; python -m dataset.synthetic"\n'
        """
from model import heads; from model.heads import (
    a as model)
from models import x
def f():
    "É"; from dataset.records import y  # from dataset
    return model.x, "see infer.py and bash scripts/get_weights.sh"
"""
    )
    expected = (
        '"É: `efficientdet-train`, efficientdet-convert, tf2/train.py; python -m efficientdet.dataset.synthetic"\n'
        """
from efficientdet.model import heads; from efficientdet.model.heads import (
    a as model)
from models import x
def f():
    "É"; from efficientdet.dataset.records import y  # from dataset
    return model.x, "see efficientdet-infer and efficientdet-get-weights"
"""
    )
    assert rewritten(source).stdout == expected


def test_an_import_that_cannot_be_rewritten_ends_a_build():
    assert rewritten("import model.heads").stderr.endswith(
        "ValueError: x.py:1: found 'import model.heads'; expected 'from package import name'\n"
    )
