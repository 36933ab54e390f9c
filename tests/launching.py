"""Calls of the launchers below scripts/, most of them with --dry_run, which prints the command that would run."""

import shlex
import subprocess
from pathlib import Path

from dataset.class_names import ClassNames

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def run(script, *words, env=None, timeout=60, **options):
    """Run a script below scripts/ with these variables and no others."""
    return subprocess.run(
        ["bash", str(SCRIPTS / script), *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PATH": "/usr/bin:/bin", **(env or {})},
        **options,
    )


def dry_run(script, *words, env=None):
    """Return the words of the command that would run."""
    done = run(script, *words, "--dry_run", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    return shlex.split(done.stdout)


def flags_of(words):
    """Return the flags among the words of a command, by name."""
    return dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)


def refusal(script, *words, env=None, **options):
    """Return the one line of a refusal."""
    done = run(script, *words, env=env, **options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def records_never_opened(folder):
    """Write what the checks of train.py before TensorFlow look at."""
    for split in ("train", "val"):
        (folder / f"{split}-00000-of-00001.tfrecord").touch()
        ClassNames((1, 7), ("cat", "dog")).write(folder / f"{split}.classes.json")
    return folder


def executable(path, body):
    """Write a Bash program."""
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
    return path
