"""The commands in the pages: their programs accept the flags, and the first commands of a new user run in order.

Bash parses the code blocks; every program is replaced by a function that records its arguments.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import command_lines
import cv2
import forked_programs
import numpy as np
import pytest
from miniature_programs import path_to_miniature
from test_packaging import PROJECT

from dataset.synthetic import draw_data_set

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "AGENTS.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("dataset/*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
COMMANDS = (ROOT / "efficientdet" / "commands.py").read_text(encoding="utf-8")
OTHERS = {
    "apptainer",
    "awk",
    "cat",
    "curl",
    "cvat-cli",
    "docker",
    "edgetpu_compiler",
    "ffmpeg",
    "gcloud",
    "jq",
    "kubectl",
    "mosquitto",
    "mosquitto_sub",
    "mpirun",
    "nuctl",
    "peer/bin/python",  # the environment of another project
    "pip",
    "hf",
    "pre-commit",
    "ray",
    "sbatch",
    "sed",
    "srun",
    "trackers",
}
OTHER_MODULES = {"build", "http.server", "mlperf_logging.compliance_checker", "venv", "zipfile"}
# These install, download or take minutes: only their paths are checked, and the extras of install.sh
LONG_SCRIPTS = {"demo.sh", "build.sh", "install.sh", "install_horovod.sh", "test.sh"}
OFFLINE = {
    "EFFICIENTDET_WEIGHTS_URL": "http://127.0.0.1:9",
    "OPEN_IMAGES_TABLES_URL": "http://127.0.0.1:9",
    "PYTHON": sys.executable,
}
# Errors that come after the checks of all flags, in an empty folder and offline
ACCEPTED = (
    "no such file|no such folder|no file matches|there is no checkpoint|cannot be read .No such file"
    "|cannot be downloaded|download failed|LABEL_STUDIO_API_KEY"
    "|s3://bucket/.*: access denied|no Ray cluster answers"
)
# In the text of a page a command need not be complete
INCOMPLETE = "|is missing|are required|must have a value|expected a folder or zip archive of labeled images"
DOTS = ("--training_file_pattern=records/train-*", "--val_file_pattern=records/val-*", "--model_dir=runs/first")
RECORD = r"""
PATH=/nowhere
command_not_found_handle() { # a file each: both sides of a pipe run at once
    {
        for name in $(compgen -e); do
            case $name in PWD | OLDPWD | SHLVL | _) ;; *) printf '%s=%s\0' "$name" "${!name}" ;; esac
        done
        printf '%s\0' "$@"
    } >"$0.$EPOCHREALTIME.$BASHPID"
}
source() { :; }
.() { :; }
"""
# Only parses the arguments of a program, after its imports
PARSE_ONLY = """
import argparse, sys
from program_support import command_line

def parse(parser, *arguments):
    if unknown := known(parser, *arguments)[1]:
        parser.error(f"unknown arguments {unknown}")
    sys.exit(0)

known, run = argparse.ArgumentParser.parse_known_args, command_line.run
argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_known_args = parse
command_line.run = lambda main, *arguments, **options: run(lambda: None, *arguments, **options)
"""


class Command(NamedTuple):
    """A command as a page calls it."""

    settings: dict[str, str]  # exported variables
    words: tuple[str, ...]


def blocks_of(page):
    """Return the fenced bash blocks of a page."""
    found = re.findall(r"^([ \t]*)```bash\n(.*?)^[ \t]*```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def spans_of(page):
    """Return the commands with flags in the text of a page, without placeholders such as --size=S."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    spans = re.findall(r"`((?:python |bash |efficientdet-)[^`]* --[^`]*)`", text)
    return [re.sub(r"\s(?:--\w+=(?:[A-Z]+|\.\.)(?!\S))?", " ", span) for span in spans if " x.sub " not in span]


def commands_of(blocks, folder):
    """Return the commands of a page's blocks; Bash runs in the empty folder, where globs match nothing."""
    record = folder / "record"
    script = "\n".join([RECORD, *blocks])
    done = subprocess.run(
        ["bash", "-c", script, record], cwd=folder, env={"BCCD": "bccd"}, capture_output=True, text=True, timeout=60
    )
    assert "syntax error" not in done.stderr, done.stderr
    commands = []
    for path in sorted(folder.glob("record.*")):
        words = path.read_text().split("\0")[:-1]
        path.unlink()
        count = next(index for index, word in enumerate(words) if not re.match(r"[A-Za-z_]+=", word))
        commands.append(Command(dict(word.split("=", 1) for word in words[:count]), tuple(words[count:])))
    return commands


def program_of(words):
    """Return (path of the program below the repository, its arguments), or None for another project's program."""
    program, *rest = words
    if program in OTHERS or (rest[:1] == ["-m"] and rest[1] in OTHER_MODULES):
        return None
    if program in PROJECT["scripts"]:
        function = PROJECT["scripts"][program].partition(":")[2]
        module = re.search(rf'"{function}": "efficientdet\.(programs\.)?([\w.]+)"', COMMANDS)
        return module[2].replace(".", "/") + ".py", rest
    if program == "taskset":
        return program_of(rest[2:])
    if program == "sbatch":
        return next((word, rest[index + 1 :]) for index, word in enumerate(rest) if word.endswith(".sub"))
    assert program in ("python", "bash"), f"{program}: unknown program"
    if rest[0] == "-m":
        rest = [rest[1].replace(".", "/") + ".py", *rest[2:]]
    if rest[0] == "scripts/horovodrun.py":
        return program_of(rest[rest.index("python") :])
    return rest[0], rest[1:]


def arguments_of(path, words):
    """Return what the program's main parser gets: without brackets and dots of the page."""
    words = [word.strip("[]") if word.startswith("[") else word for word in words]
    if "..." in words:
        words = [word for word in words if word != "..."] + [*DOTS]
    if path == "compare.py":  # as its last lines do
        words = [f"--models={word}" if not word.startswith("-") else word for word in words]
    if path == "quickstart.py" and not words[0].startswith("-"):  # as its last lines do
        words[0] = f"--images={words[0]}"
    return words


def refused(commands, folder, accepted):
    """Return the commands that end with an error that is not accepted, each with the error."""
    found, cases, seen = [], [], set()
    hook = folder / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(PARSE_ONLY)
    for command in commands:
        if (program := program_of(command.words)) is None:
            continue
        path, words = program[0], arguments_of(*program)
        if "--help" in words:
            continue
        assert (ROOT / path).is_file(), f"{path}: no such program"
        if (path.endswith(".py") and "/" not in path) or path.startswith("dataset/create_"):
            cases.append([path.removesuffix(".py").replace("/", "."), *words])
            continue
        names = (path, frozenset(word.partition("=")[0] for word in words))
        if path.startswith("benchmarks/") and names in seen:  # argparse reads the same flags again
            continue
        seen.add(names)
        done = called(path, words, command.settings, hook=hook, folder=folder)
        if done.returncode and not re.search(accepted, done.stderr):
            found.append(f"{' '.join(command.words)}: {done.stderr}")
    for case, outcome in zip(cases, command_lines.outcomes(cases, cwd=folder), strict=True):
        if not outcome["wanted"] and not re.search(accepted, outcome["stderr"]):
            found.append(f"{' '.join(case)}: {outcome['stderr']}")
    return found


def called(path, words, settings, *, hook, folder):
    """Call a program that parses its arguments itself, without its work."""
    env = {**os.environ, **OFFLINE, **settings, "PYTHONPATH": f"{hook}{os.pathsep}{ROOT}"}
    if path.endswith(".py"):
        return forked_programs.run([sys.executable, ROOT / path, *words], env=env, cwd=folder)
    name = Path(path).name
    if name == "install.sh":
        assert {*words} <= {*PROJECT["optional-dependencies"]}
    if name in LONG_SCRIPTS:
        return subprocess.run(["bash", "-n", ROOT / path], capture_output=True, text=True, timeout=60)
    if name.startswith("get_"):
        env["PYTHONPATH"] = ""
    elif "--dry_run" not in words:
        words = [*words, "--dry_run"]
    return subprocess.run(
        ["bash", ROOT / path, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def offline(monkeypatch, tmp_path):
    for name, value in {**OFFLINE, "EFFICIENTDET_WEIGHTS": str(tmp_path / "weights")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("parts", "least", "accepted"), [(blocks_of, 80, ACCEPTED), (spans_of, 10, ACCEPTED + INCOMPLETE)]
)
def test_programs_accept_the_commands_of_the_pages(tmp_path, parts, least, accepted):
    commands = []
    for page in PAGES:
        folder = tmp_path / page.relative_to(ROOT)
        folder.mkdir(parents=True)
        commands += commands_of(parts(page), folder)
    assert len(commands) >= least
    (tmp_path / "empty").mkdir()
    assert not (found := refused(commands, tmp_path / "empty", accepted)), "\n".join(found)


# The first commands of a new user, in order, and what makes them short: text of the block -> its replacement
SHORT = "--hparams=image_size=64"
FIRST = {
    "README.md": {
        "--output_dir=runs/quick --minutes=8": f"--output_dir=runs/quick --minutes=0.1 --weights=none {SHORT}",
        "--batch_size=16 --num_epochs=100 --pretrained_ckpt=efficientdet-d0": f"--batch_size=4 --num_epochs=1 {SHORT}",
        # the miniature is another network
        "python infer.py --model_dir=efficientdet-lite0-starter --image_path=testdata/astronaut.jpg": ": ",
    },
    "docs/guides/data_check.md": {},
    "docs/guides/export.md": {  # no network, and no server
        "python export.py --ckpt=runs/first --output_dir=exported --formats=web --images='photos/*.jpg'": "",
        "python -m http.server --directory exported/web": "",
    },
    "docs/guides/evaluate.md": {  # a flag that another command has too
        "detector.onnx --val_file_pattern='records/val-*'": "detector.onnx --val_file_pattern='records/train-*'",
        "--results=predictions.json --val_json_file=instances_val.json": "--results=annotated/detections.json "
        "--val_json_file=photos/labels.json",
        "--images=photos/test --annotations=photos/test/labels": "--images=photos --val_fraction=0",
        "python eval.py --ckpt=runs/first --val_file_pattern='records/val-*' --store_thresholds": "",
    },
    "docs/guides/inference.md": {  # no camera, broker and jq, and no command of README.md again
        "python infer.py --model_dir=runs/first --image_path='photos/*.jpg' --output_dir=annotated": "",
        "--image_path=0": "--image_path=photo.jpg",
        "python infer.py --model=exported/detector.onnx --image_path=rtsp://user:password@10.0.0.5/ch1 "
        "--output_dir=annotated": "",
        "--image_path=rtsp://user:password@10.0.0.5/ch1": "--image_path=photo.jpg",
        "python infer.py --model=exported/detector.onnx --image_path=rtsp://10.0.0.5/ch1 --output_dir=door "
        "--save=events \\\n  --mqtt=mqtt://user:password@homeassistant.local:1883/cameras/door": "",
        "--image_path=rtsp://10.0.0.5/ch1": "--image_path=photo.jpg",
        "jq -c 'select(.detections != []) | [.time, .detections[].class]'": "cat",
    },
}
RUN = """
set -euo pipefail
bash() { :; }
source() { :; }
python() { "$FORKED" "$ROOT/$1" "${@:2}"; }
"""


@pytest.mark.slow
def test_the_first_commands_run_in_order(tmp_path):
    draw_data_set(tmp_path / "drawn", images={"train": 12}, image_size=(64, 96), seed=1)
    shutil.copytree(tmp_path / "drawn" / "train", tmp_path / "photos")
    for folder in ("photos", "labels"):
        (tmp_path / folder).mkdir(exist_ok=True)
        shutil.copy(tmp_path / "drawn" / "annotations" / "instances_train.json", tmp_path / folder / "labels.json")
    for name in ("photo.jpg", "aerial.jpg"):
        shutil.copy(next((tmp_path / "photos").glob("*.jpg")), tmp_path / name)
    writer = cv2.VideoWriter(str(tmp_path / "slide.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 25.0, (96, 64))
    for _ in range(3):
        writer.write(np.full((64, 96, 3), 128, np.uint8))
    writer.release()
    blocks = []
    for page, replacements in FIRST.items():
        block = "\n".join(block for block in blocks_of(ROOT / page) if "python" in block)
        for text, short in replacements.items():
            assert text in block, f"{page}: {text}"
            block = block.replace(text, short)
        blocks.append(re.sub(r"^python train.py \.\.\..*$", "", block, flags=re.MULTILINE))
    done = subprocess.run(
        ["bash", "-c", "\n".join([RUN, *blocks])],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": path_to_miniature(tmp_path),
            "FORKED": forked_programs.python(),
            "ROOT": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "in the browser:   python serve.py --model=" in done.stdout
    for path in (
        "runs/quick/result.html",
        "runs/quick/doctor/doctor.html",
        "runs/quick/model/report.html",
        "runs/quick/evaluation/report.html",
        "runs/quick/exported/detector.onnx",
        "runs/first/report.html",
        "runs/first/evaluation/report.html",
        "runs/doctor/doctor.html",
        "exported/detector.onnx",
        "exported/detector-int8.onnx",
        "exported/detector.tflite",
        "exported/detector.xml",
        "annotated/photo.jpg",
        "annotated/detections.csv",
    ):
        assert (tmp_path / path).is_file(), path
