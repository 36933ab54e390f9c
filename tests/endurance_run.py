"""A whole `train.py` on drawn images, ended at a chosen phase, gone on with, and compared number for number.

The command line, the loop, the files and the export are the real ones; the network is that of tests/miniature.py, so
that a run takes seconds: a hook in a `sitecustomize` of its own folder puts it in the place of EfficientDet's.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import forked_programs
import numpy as np
from drawn_records import Drawn
from forked_programs import ForkedProgram
from heeded_signals import heeding_ctrl_c

from efficientdet.checkpoints.checkpoint import read_arrays, read_description

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = [sys.executable, str(ROOT / "scripts" / "horovodrun.py"), "--gloo", "-np", "2"]
_HOOK = """
import importlib.util, sys

class MiniatureNetwork:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "efficientdet.families.efficientdet.build":
            return None
        sys.meta_path.remove(MiniatureNetwork)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_replace(module):
            execute(module)

            def build_detector(*arguments, **options):
                from miniature_training import build_miniature
                return build_miniature(*arguments, **options)

            module.build_detector = build_detector

        spec.loader.exec_module = execute_and_replace
        return spec

sys.meta_path.insert(0, MiniatureNetwork)
"""
_FLAGS = {
    "batch_size": 4,
    "eval_batch_size": 2,
    "num_epochs": 6,
    "eval_period": 1,
    "checkpoint_period": 2,
    "checkpoint_steps": 3,
    "calibration_images": 8,
    "deterministic": True,
    "warmup_epochs": 1,
    "lr": 0.02,
}
_HPARAMS = {"image_size": 64, "jitter_min": 0.8, "jitter_max": 1.2, "moving_average_decay": 0.9}
# Phase -> for how many seconds after it began the end comes, at random.
PHASES = {"start-up": 6.0, "steps": 1.5, "checkpoint": 0.05, "evaluation": 1.0, "export": 3.0, "report": 0.3}


def path_to_miniature(folder: Path) -> str:
    """Return a PYTHONPATH with which every program has the miniature network; writes a hook into the folder."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(_HOOK)
    return os.pathsep.join(map(str, (hook, ROOT / "tests", ROOT)))


class Ended(NamedTuple):
    """How a process ended."""

    code: int
    output: str  # both streams
    seconds: float  # from the signal on, or from the start where there was none
    in_time: bool = True  # False: it was over before the phase came


class Course:
    """One training in one folder, of however many processes one after the other."""

    def __init__(
        self,
        drawn: Drawn,
        folder: Path,
        *,
        launcher: list[str] | None = None,
        env: dict | None = None,
        hparams: dict | None = None,
        forked: bool = False,
        **flags,
    ):
        self.drawn, self.folder, self.launcher, self.forked = drawn, folder, launcher or [], forked
        self._env, self._hparams, self._flags = env or {}, {**_HPARAMS, **(hparams or {})}, {**_FLAGS, **flags}
        self.log = folder.parent / f"{folder.name}.log"  # beside it, as the folder may be full
        self._path = path_to_miniature(drawn.folder)

    def command(self) -> list[str]:
        """The whole command line."""
        flags = {
            "training_file_pattern": f"{self.drawn.folder}/train-*",
            "val_file_pattern": f"{self.drawn.folder}/val-*",
            "model_dir": self.folder,
            "hparams": ",".join(f"{key}={value}" for key, value in self._hparams.items()),
            **self._flags,
        }
        return [
            *self.launcher,
            sys.executable,
            str(ROOT / "train.py"),
            *(f"--{name}={value}" for name, value in flags.items() if value is not None),
        ]

    def start(self) -> subprocess.Popen | ForkedProgram:
        """Begin, or continue."""
        self._before = self._signature()
        env = {
            **os.environ,
            "PYTHONPATH": self._path,
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **self._env,
        }
        if self.forked:
            self.log.write_text("")
            return forked_programs.start(self.command(), env=env, cwd=self.log.parent, output=self.log)
        with open(self.log, "w") as log:
            return subprocess.Popen(
                heeding_ctrl_c(self.command()),
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.log.parent,
                env=env,
            )

    def run(self, *, seconds: float = 600) -> Ended:
        """To the end."""
        began = time.monotonic()
        process = self.start()
        try:
            code = process.wait(timeout=seconds)
        finally:
            kill_all(process)
        return Ended(code, self.log.read_text(errors="replace"), time.monotonic() - began)

    def end_in(self, phase: str, number: int, chance: random.Random, *, seconds: float = 600) -> Ended:
        """Started, and sent a signal at a random moment of a phase, SIGSTOP for five seconds; waits for its end."""
        process = self.start()
        try:
            came = wait_until(lambda: self.is_in(phase), process)
            time.sleep(chance.uniform(0.0, PHASES[phase]))
            in_time, sent = came and process.poll() is None, time.monotonic()
            if in_time:
                process.send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(5)
                process.send_signal(signal.SIGCONT)
            code = process.wait(timeout=seconds)
            return Ended(code, self.log.read_text(errors="replace"), time.monotonic() - sent, in_time)
        finally:
            kill_all(process)

    def is_in(self, phase: str) -> bool:
        """Whether the process that was started last has come to a phase."""
        if phase == "start-up":
            return True
        if phase == "steps":
            return "trainable_parameters" in self.log.read_text(errors="replace")
        now = self._signature()
        changed = {name for name, mark in now.items() if self._before.get(name) != mark}
        if phase == "checkpoint":
            return any("ckpt" in name for name in changed)
        if phase == "evaluation":
            return any(self._is_of_unfinished_epoch(name) for name in changed if name.startswith("ckpt-"))
        return {"export": "ckpt-final.index", "report": "metrics-final.json"}[phase] in changed

    def _is_of_unfinished_epoch(self, name: str) -> bool:
        try:
            content = json.loads((self.folder / name).read_text()) if name.endswith(".json") else {}
        except (OSError, ValueError):
            return False
        return content.get("run", {}).get("unfinished_epoch", 0) > 0

    def _signature(self) -> dict[str, tuple]:
        found = {}
        for entry in os.scandir(self.folder) if self.folder.is_dir() else ():
            try:
                found[entry.name] = (entry.stat().st_mtime_ns, entry.stat().st_ino)
            except FileNotFoundError:  # it was being written
                continue
        return found


def wait_until(condition, process: subprocess.Popen, *, seconds: float = 600) -> bool:
    """Whether the condition came true while the process ran."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if condition():
            return True
        time.sleep(0.003)
    return False


def kill_all(process: subprocess.Popen) -> None:
    """The process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


CLOCKS = ("seconds", "best_seconds")  # how long it took, of a training's progress


def differences(found: Path, wanted: Path) -> list[str]:
    """Of every number that two trainings leave: weights, momentum, averages, the best, progress, metrics, export."""

    def of(folder: Path) -> set[str]:
        bundles = {str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.index")}
        return {name for name in bundles if not name.startswith("ckpt-") or name == "ckpt-final"}

    names = of(found) | of(wanted)
    different = [f"{name} is there or not" for name in sorted(of(found) ^ of(wanted))]
    for name in sorted(names - (of(found) ^ of(wanted))):
        one, other = (read_arrays(str(folder / name)) for folder in (found, wanted))
        arrays = [key for key in one.keys() | other.keys() if _bytes(one, key) != _bytes(other, key)]
        if arrays:
            different.append(f"{name}: {len(arrays)} of {len(other)} arrays, such as {sorted(arrays)[0]}")
        ours, theirs = (_said(folder / name) for folder in (found, wanted))
        if ours != theirs:
            different.append(f"{name}.json")
    measures = {file.name for folder in (found, wanted) for file in folder.glob("metrics-*.json")}
    return different + [name for name in sorted(measures) if _text(found / name) != _text(wanted / name)]


def _said(prefix: Path) -> tuple | None:
    """What is said of a bundle's weights and of the training, but for the clock."""
    description = read_description(str(prefix))
    return description and (
        description.weights,
        {key: value for key, value in description.run.items() if key not in CLOCKS},
    )


def _bytes(arrays: dict, key: str) -> bytes | None:
    return np.asarray(arrays[key]).tobytes() if key in arrays else None


def _text(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def one_line(output: str) -> str:
    """What a failed run says in place of a traceback."""
    lines = [line for line in output.splitlines() if "error: " in line]
    return lines[0] if len(lines) == 1 and "Traceback" not in output else f"{len(lines)} lines: {output[-400:]}"
