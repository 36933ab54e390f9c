"""README and pages agree with programs and source; license, version, commands, lock."""

import ast
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.markers import Marker

from efficientdet.plugins.streams.tracks import TRACKERS
from program_support import installation

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
PACKAGES = ("dataset", "efficientdet", "model", "object_detection", "program_support")
PROGRAMS = (
    "train.py",
    "eval.py",
    "compare.py",
    "infer.py",
    "inspector.py",
    "export.py",
    "quickstart.py",
    "serve.py",
    "doctor.py",
    "next_images.py",
    "dataset/create_tfrecord.py",
    "dataset/create_coco_tfrecord.py",
    "dataset/create_pascal_tfrecord.py",
    "dataset/create_open_images_tfrecord.py",
    "dataset.synthetic",
)  # the last as `python -m` takes it
PAGES = sorted([ROOT / "README.md", ROOT / "dataset" / "README.md", *(ROOT / "docs").rglob("*.md")])
# In the pages, of programs that are not ours
OTHERS_FLAGS = {
    "keep_images_of_refused_boxes",  # removed, see differences.md
    "local-dir",  # of hf download
    "accelerator-type",
    "auto-orient",
    "connections",  # connections, max_images: of dataset/get_open_images.sh
    "epochs",  # of other programs
    "max_images",
    "pause",  # pause, threads: of benchmarks/input.py, an earlier version
    "threads",
    "batch-size",  # batch-size, data-path, test-only, weights-backbone: torchvision's
    "data-path",
    "directory",  # of http.server
    "detect",
    "from-literal",  # of kubectl
    "generate",  # generate, num-cpus: of ray
    "gloo",
    "gres",
    "num-cpus",
    "logdir",
    "no-cache-dir",
    "no-deps",  # of pip
    "columns",  # columns, gt, metrics, tracker: of trackers eval
    "gt",
    "metrics",
    "tracker",
    "np",
    "no-kill",  # of sbatch
    "nproc_per_node",
    "ntasks-per-node",
    "outdir",
    "allow-unmatched-labels",  # allow-unmatched-labels, auth, conf-threshold, function-file, server-host: of cvat-cli
    "auth",
    "conf-threshold",
    "function-file",
    "server-host",
    "path",  # path, file, platform, platform-config, project-name: of nuctl
    "file",
    "platform",
    "platform-config",
    "project-name",
    "requeue",
    "ruleset",
    "show_operations",  # of edgetpu_compiler
    "test-only",
    "tf_xla_persistent_cache_directory",  # of TF_XLA_FLAGS
    "weights-backbone",
    "worker",
    "zone",
}


def text(page):
    return page.read_text(encoding="utf-8")


def test_readme_is_short():
    assert len(text(ROOT / "README.md").splitlines()) <= 120


# Links


def anchors(page):
    """Of the headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.*)$", text(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken_links(page) == []


# Flags


@cache
def help_of(program):
    """Flag -> what --help says of it; the words of a help that is wrapped, in one line."""
    words = [program] if program.endswith(".py") else ["-m", program]
    done = subprocess.run([sys.executable, *words, "--helpfull"], cwd=ROOT, capture_output=True, text=True, check=True)
    entries = re.findall(r"^  --(?:\[no\])?(\w+): (.*?)(?=^  --|^\S|\Z)", done.stdout, flags=re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()) for name, words in entries}


def known_flags():
    found = {name for program in PROGRAMS for name in help_of(program)} | {"help"}
    others = [
        *(ROOT / "scripts").rglob("*.sh"),
        *(ROOT / "scripts").rglob("*.py"),
        *(ROOT / "benchmarks").glob("*.py"),
    ]
    return found | {name for file in others for name in re.findall(r"--([a-z][a-z_0-9]*)\b", text(file))}


def flags_in(words):
    return set(re.findall(r"(?<![\w-])--(?:no(?=amp|use_xla|apply_exif))?([a-z][\w-]*)", words))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_in_the_pages_exist(page):
    assert flags_in(text(page)) - known_flags() - OTHERS_FLAGS == set()


def rows(part):
    """Of the tables in a part of a page: the cells of each row."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("| ")
    ]


def missing_former_flags(migration, program):
    """Flags of google/automl's that have another name or none here, and whose row does not say so."""
    cells = {row[0]: " ".join(row[1:]) for row in migration}
    missing = []
    for name, words in help_of(program).items():
        found = re.match(r"Alias for --(?P<alias>\w+)|Removed: (?P<reason>.*)\.", words)
        if found and (found["alias"] or found["reason"]) not in cells.get(f"`--{name}`", ""):
            missing.append(name)
    return missing


@pytest.mark.parametrize("program", ["train.py", "eval.py", "infer.py", "inspector.py"])
def test_every_former_flag_stands_in_the_migration_table(program):
    _, _, automl = text(ROOT / "docs" / "reference" / "differences.md").partition(
        "\n## Moving from google/automl's programs"
    )
    part = re.split(r"^##", automl.split(f"### `{program}`")[1], flags=re.MULTILINE)[0]
    assert missing_former_flags(rows(part), program) == []


def gone_hyperparameters():
    """Key -> what stands of it in the source, wherever that table is."""
    for file in (ROOT / "efficientdet").rglob("*.py"):
        if '"poly_lr_power": ' in text(file):
            module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            return next(
                table for table in vars(module).values() if isinstance(table, dict) and "poly_lr_power" in table
            )
    raise AssertionError("there is no table of hyperparameters that are gone")


def test_every_hyperparameter_that_is_gone_stands_in_the_page():
    _, _, part = text(ROOT / "docs" / "reference" / "differences.md").partition("\n## Hyperparameters that are gone\n")
    reasons = {row[0].strip("`"): row[-1] for row in rows(part)}
    gone = gone_hyperparameters()
    assert len(gone) > 20
    assert {key: reasons.get(key) for key in gone} == {key: value.reason for key, value in gone.items()}


# Messages


@cache
def said():
    """Every text in the source, a NUL for each value that is put into one; and the shell scripts."""
    found = []
    for file in [*ROOT.glob("*.py"), *(file for folder in PACKAGES for file in (ROOT / folder).rglob("*.py"))]:
        for node in ast.walk(ast.parse(text(file))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found + [text(file) for file in (ROOT / "scripts").rglob("*.sh")]


def unsaid(lines):
    """Words in the first column of tables that no program has; `..` stands for what varies."""
    quotes = [
        quote for line in lines if line.startswith("| ") for quote in re.findall(r"`([^`]+)`", line.split(" | ")[0])
    ]
    pieces = [piece.strip() for quote in quotes for piece in quote.split("..")]
    return [piece for piece in pieces if not any(piece in words for words in said())]


def test_troubleshooting_quotes_what_the_programs_say():
    lines = text(ROOT / "docs" / "guides" / "troubleshooting.md").splitlines()
    assert sum(line.startswith("| `") for line in lines) > 40
    assert unsaid(lines) == []


# Package


def test_version_without_an_installation(monkeypatch):
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError))
    assert installation.project_version() == PROJECT["version"]
    monkeypatch.setattr(installation, "ROOT", ROOT / "docs")
    assert installation.project_version() == "0+unknown"


def test_version_stands_once():
    try:
        installed = metadata.version("efficientdet-tf2")
    except metadata.PackageNotFoundError:
        pytest.skip("the project is not installed here")
    assert installed == PROJECT["version"]
    elsewhere = [file for folder in PACKAGES for file in (ROOT / folder).rglob("*.py") if "__version__ =" in text(file)]
    assert elsewhere == []


def test_packages_say_that_they_are_typed():
    assert [name for name in PACKAGES if not (ROOT / name / "py.typed").exists()] == []


def test_git_ignores_what_the_pages_write_and_nothing_else():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--show-toplevel").stdout.strip() != str(ROOT):
        pytest.skip("these files are not in a git repository of their own")
    written = {
        "runs/first/ckpt-1.index",
        "records/train-00000-of-00001.tfrecord",
        "exported/detector.onnx",
        "annotated/a.jpg",
    }
    assert {*git("check-ignore", *written).stdout.split()} == written
    assert git("ls-files", "--cached", "--ignored", "--exclude-standard").stdout == ""


# Commands


def test_the_readme_names_every_command():
    after = text(ROOT / "README.md").partition("After `pip install .` the programs are ")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(efficientdet-[\w-]+)`", after)) == sorted(PROJECT["scripts"])


def run_command(function, *words, folder, path=""):
    """A command of an editable install."""
    code = (
        "import sys; sys.argv = ['/bin/efficientdet-x', *sys.argv[1:]]; "
        f"from efficientdet.commands import {function}; {function}()"
    )
    return run_python("-P", "-c", code, *words, folder=folder, path=path)


def run_python(*words, folder, path=""):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))},
    )


def test_a_command_of_an_editable_install_is_its_program(tmp_path):
    (tmp_path / "model.py").write_text("raise RuntimeError")  # the current folder is not on the path
    done = run_command("train", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--training_file_pattern" in done.stdout


@pytest.mark.parametrize("name", ["model", "train"])
def test_a_namesake_before_an_editable_install_is_named(tmp_path, name):
    namesake = tmp_path / f"{name}.py"
    namesake.write_text("raise RuntimeError")
    message = (
        f"the module {name} is {namesake}, not this project's; rename it, unset PYTHONPATH, or install this project "
        "as a wheel: pip install . without -e\n"
    )
    done = run_command("train", "--help", folder=tmp_path, path=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, f"efficientdet-x: error: {message}")
    if name == "model":
        done = run_python("-c", "import efficientdet; efficientdet.load_detector", folder=tmp_path)
        assert done.stderr.endswith(f"\nImportError: {message}")


def test_a_checkout_has_the_names_of_a_wheel():
    """Each is the module itself, and leaves it as it was."""
    names = ["model", "model.weight_arrays", "dataset.files.image_files", "program_support.errors", "quickstart"]
    modules = [importlib.import_module(name) for name in names]
    specs = [module.__spec__ for module in modules]
    assert [
        importlib.import_module(f"efficientdet.{name}".replace(".quickstart", ".programs.quickstart")) for name in names
    ] == modules
    assert [module.__spec__ for module in modules] == specs
    assert [module.__name__ for module in modules] == names
    with pytest.raises(ModuleNotFoundError, match=r"efficientdet\.model\.nowhere"):
        importlib.import_module("efficientdet.model.nowhere")


def test_a_checkout_runs_modules_by_the_names_of_a_wheel(tmp_path):
    done = run_python(
        "-m",
        "efficientdet.dataset.synthetic",
        "--train_images=1",
        "--val_images=1",
        "--image_size=64x64",
        f"--output_dir={tmp_path}",
        folder=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("train/*.jpg"))) == 1


# Lock


def pins():
    lines = [line.partition(";") for line in text(ROOT / "requirements.lock").splitlines() if not line.startswith("#")]
    here = [pin.strip() for pin, _, marker in lines if not marker or Marker(marker.strip()).evaluate()]
    return dict(pin.split("==") for pin in filter(None, here))


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_lock_pins_every_package_asked_for():
    asked = [*PROJECT["dependencies"], *(line for lines in PROJECT["optional-dependencies"].values() for line in lines)]
    names = {normalized(re.match(r"[\w.-]+", line)[0]) for line in asked}
    assert names - pins().keys() == set()
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins().values())


def test_no_package_brings_another_opencv():
    """opencv-python has the same files as opencv-python-headless, built for desktops with libGL."""
    assert [name for name in pins() if "opencv" in name] == ["opencv-python-headless"]


def test_ci_runs_with_the_versions_of_the_lock():
    stamp = Path(sys.prefix) / ".installed-test"
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    if not (stamp.exists() and lock in stamp.read_text()):
        pytest.skip("this environment was not made by scripts/environment.sh with this lock")
    found = {normalized(one.name): one.version for one in metadata.distributions()}
    assert {
        name: (version, pins()[name]) for name, version in found.items() if pins().get(name, version) != version
    } == {}


def install(folder, *, lock):
    """What pip is asked for by scripts/environment.sh, in a repository whose Python is a script."""
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "environment.sh", folder / "scripts")
    (folder / "pyproject.toml").touch()
    if lock:
        (folder / "requirements.lock").write_text(lock)
    (folder / ".venv" / "bin").mkdir(parents=True)
    python = folder / ".venv" / "bin" / "python"
    python.write_text('#!/bin/bash\n[[ "$*" == "-m pip install "* ]] && echo "${@:8}" >>"$PWD/asked"\nexit 0\n')
    python.chmod(0o755)

    def call():
        subprocess.run(
            ["bash", "-euc", "source scripts/environment.sh; use_environment test"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        return (folder / "asked").read_text().splitlines()

    return call


def test_the_environment_is_installed_with_the_lock_and_again_when_it_changes(tmp_path):
    call = install(tmp_path / "a b", lock="six==1\n")
    asked = f"--constraint {tmp_path}/a b/requirements.lock --editable .[test]"
    trackers = f"--no-deps {TRACKERS}"
    assert call() == call() == [asked, trackers]
    (tmp_path / "a b" / "requirements.lock").write_text("six==2\n")
    assert call() == [asked, trackers] * 2


def test_requirements_are_this_project_in_the_locked_versions():
    """`pip install -r requirements.txt`, as the references' documents have it."""
    assert text(ROOT / "requirements.txt") == "-c requirements.lock\n-e .\n"
