"""The output folder of a quick start: one quick start uses it at a time, and others' files in it stay as they are."""

import contextlib
import glob
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataset.class_names import class_names_of_records
from dataset.files.bounded_files import read_json
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from program_support.atomic_files import is_other_process
from program_support.claimed_outputs import is_marked, is_output, list_outputs, refuse_unmarked
from program_support.errors import InputError
from program_support.file_lock import HOLDER, LockedError, held_lock, lock_file

FOLDERS = ("records", "doctor", "model_smaller_input", "model", "evaluation", "exported")
STATE = "quickstart.json"
HISTORY = "history.json"  # of an earlier version, whose present model is in the output folder itself
METRICS = "metrics.json"  # written together with the folder `evaluation`
_LOCK = "quickstart.lock"
_SECONDS_BETWEEN_TRIES = 0.5


@contextlib.contextmanager
def sole_quickstart(folder: Path) -> Iterator[None]:
    """Hold the lock of the output folder in a block; the programs that the block starts hold it as well.

    Waits for the programs of a quick start that was killed.

    Raises:
        InputError: another quick start holds the lock.
    """
    with contextlib.ExitStack() as stack:
        is_waiting = False
        while True:
            try:
                stream = stack.enter_context(held_lock(folder / _LOCK))
                break
            except LockedError as error:
                if not _was_killed(str(error)):
                    raise InputError(
                        f"{folder}: another quick start ({error}) uses this folder; wait until it ends or use another "
                        "--output_dir"
                    ) from None
                if not is_waiting:
                    print(f"{folder}: waiting for the programs of a quick start that was killed ({error})", flush=True)
                is_waiting = True
                time.sleep(_SECONDS_BETWEEN_TRIES)
        if stream is None:
            print(f"warning: {folder}: no file locks here: a second quick start in it would go undetected")
        else:
            os.set_inheritable(stream.fileno(), True)
        yield


def wait_for_quickstart(folder: Path) -> bool:
    """Wait until no quick start uses the output folder, such as one that saves its state because it was stopped.

    Return whether the first one there has converted its labels and is not finished: it resumes with the same only.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as stream:
        lock_file(stream, wait=True)
    latest = round_folder(folder, latest_round(folder))
    return "convert" in steps_done(latest) and not is_finished(latest)


def round_folder(folder: Path, number: int) -> Path:
    """Return the folder of a round: the output folder for the first, `rounds/N` in it for each on changed labels."""
    return folder if number == 1 else folder / "rounds" / str(number)


def latest_round(folder: Path) -> int:
    """Return the number of the latest round that has begun, 1 if there is none."""
    names = (path.parent.name for path in folder.glob(f"rounds/*/{STATE}"))
    return max([1, *(int(name) for name in names if name.isdecimal())])


def is_finished(folder: Path) -> bool:
    """Return whether a round has exported its model, or found it worse than the one before."""
    done = steps_done(folder)
    return "export" in done or done.get("compare", {}).get("replaced") is False


def present_round(folder: Path, *, before: int | None = None) -> int:
    """Return the number of the latest round whose model was exported, of those below `before`."""
    if (folder / HISTORY).exists():
        return 1
    numbers = range(2, before or latest_round(folder) + 1)
    return max([1, *(number for number in numbers if "export" in steps_done(round_folder(folder, number)))])


def exported_model(folder: Path) -> Path:
    """Return the latest exported model in an output folder, by which it is served."""
    return round_folder(folder, present_round(folder)) / "exported" / "detector.onnx"


def steps_done(folder: Path) -> dict[str, Any]:
    """Return the finished steps in a folder with their results."""
    return stored_state(folder).get("done", {})


def stored_state(folder: Path) -> dict[str, Any]:
    """Return the content of the state file in a folder; empty if there is none."""
    try:
        content = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("done"), dict) else {}


def _was_killed(holder: str) -> bool:
    """Return whether a process of this host held the lock that no longer exists, so that only its programs hold it."""
    match = HOLDER.fullmatch(holder)
    if not match or match["host"] != platform.node() or int(match["process"]) == os.getpid():
        return False
    return not is_other_process(int(match["process"]))


def refuse_foreign_output(folder: Path) -> None:
    """Raise InputError for anything in the output folder that a step would overwrite and no quick start wrote."""
    for name in FOLDERS:
        refuse_unmarked(folder / name)
    if not is_marked(folder / "evaluation"):
        refuse_unmarked(folder / METRICS)
    elif not is_output(folder / METRICS, below=folder):  # of a version without a list
        list_outputs(folder, [METRICS])


def labeled_images(pattern: str, *, most: int | None = None) -> LabeledImages:
    """Return the images of the records, or the first `most`."""
    records = expand_glob(pattern)
    index = index_records(records)
    names = class_names_of_records(records)
    assert names is not None
    return labeled_records(index, names, range(len(index))[:most])


def instances(folder: Path, split: str) -> dict[str, Any]:
    """Return the images, objects and classes of the records of a split in COCO's format, as the conversion wrote them.

    Raises:
        InputError: the file is missing or damaged.
    """
    return read_json(str(folder / "records" / f"{split}.instances.json"))


def image_count(pattern: str) -> int:
    """Return the number of images of the records."""
    return len(index_records(sorted(glob.glob(pattern))))


def records_of(folder: Path, split: str) -> str | None:
    """Return the pattern of the records of train, val or test; None if there are none."""
    pattern = records_pattern(folder, split)
    return pattern if glob.glob(pattern) else None


def records_pattern(folder: Path, split: str) -> str:
    """Return the pattern of the records of train, val or test."""
    return f"{glob.escape(str(folder))}/records/{split}-*"
