"""The output folder of a quick start and its state: one quick start uses it at a time, and others' files stay."""

import contextlib
import glob
import hashlib
import json
import os
import platform
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dataset.class_names import class_names_of_records
from dataset.conversion.folder_files import FolderFiles
from dataset.conversion.formats.yolo import class_files_beside, names_classes
from dataset.files.bounded_files import open_regular_file, read_json
from dataset.files.file_kinds import ANNOTATION_SUFFIXES
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from efficientdet.options.quickstart import QuickstartConfig
from program_support.archives import archive_digest, archive_kind
from program_support.atomic_files import is_other_process, write_text
from program_support.claimed_outputs import is_marked, is_output, list_outputs, refuse_unmarked, unpacked_archive
from program_support.errors import InputError
from program_support.file_lock import HOLDER, LockedError, held_lock, lock_file

FOLDERS = ("records", "doctor", "model_smaller_input", "model", "evaluation", "exported")
STATE = "quickstart.json"
HISTORY = "history.json"  # of an earlier version, whose present model is in the output folder itself
ARTIFACT = "exported/detector.onnx"
METRICS = "metrics.json"  # written together with the folder `evaluation`
RESULT = "result.html"
LOG = "quickstart.log"
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
    return round_folder(folder, present_round(folder)) / ARTIFACT


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
        refuse_unmarked(folder / RESULT)
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


_MAY_CHANGE = ("output_dir", "minutes", "max_bad_fraction")
_MAY_CHANGE_UNTIL_CHOSEN = ("weights", "hparams", "formats")
_VERSION = 2  # of the file
_REPEATED_FOR_MORE_MINUTES = ("train", "evaluate", "compare", "export")


class State:
    """State file of a quick start: finished steps and chosen settings, with which a second call resumes.

    Until the conversion is finished a call starts over, so that settings, images and labels may be corrected. Later
    ones must be the same; those that the conversion does not depend on, once the settings of the training are chosen.
    """

    def __init__(self, path: Path, settings: dict[str, Any]):
        """Read the state file of a quick start with these settings."""
        self.path, settings = path, json.loads(json.dumps(settings))
        new: dict[str, Any] = {"version": _VERSION, "asked": settings, "done": {}, "seconds": {}}
        try:
            self._content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else new
            if self._content["version"] != _VERSION:
                raise ValueError(f"version {self._content['version']}; expected {_VERSION}")
            if "convert" not in self._content["done"]:
                self._content = new
            asked, self._done, self._seconds = (self._content[part] for part in ("asked", "done", "seconds"))
            may_change = _MAY_CHANGE if "choose" in self._done else _MAY_CHANGE + _MAY_CHANGE_UNTIL_CHOSEN
            other = [key for key in settings if key not in may_change and asked.get(key) != settings[key]]
            is_longer = settings["minutes"] > asked["minutes"] and "train" in self._done
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not a state file of this quick start ({error}); expected another --output_dir"
            ) from error
        if other:
            raise InputError(
                f"{path}: was started with {other[0]} {asked.get(other[0])!r}, not {settings[other[0]]!r}; expected "
                "the same, or another --output_dir"
            )
        if is_longer:  # a finished training continues
            print(f"--minutes raised from {asked['minutes']:g} to {settings['minutes']:g}: resuming the training")
            for step in _REPEATED_FOR_MORE_MINUTES:
                self._done.pop(step, None)
        asked.update(settings)

    def require_same(self, name: str, fingerprint: str, *, where: Path | str, advice: str) -> None:
        """Raise InputError if an earlier call converted images or labels with another fingerprint."""
        if self._content.setdefault(name, fingerprint) != fingerprint:
            raise InputError(f"{where}: images or labels changed after their conversion; {advice}")

    def pass_sources_to(self, path: Path) -> None:
        """Store the fingerprints of images and labels in the state file of another round, whose records are equal."""
        content = json.loads(path.read_text(encoding="utf-8"))
        content |= {name: self._content[name] for name in ("source", "unpacked") if name in self._content}
        write_text(path, json.dumps(content, indent=1))

    def seconds(self, other_than: str) -> float:
        """Return the seconds of all steps but one in all calls so far."""
        return sum(seconds for step, seconds in self._seconds.items() if step != other_than)

    def spend(self, step: str, seconds: float) -> None:
        """Count seconds of a step, which is not done thereby."""
        self._seconds[step] = self._seconds.get(step, 0.0) + round(seconds, 1)

    def _write(self) -> None:
        try:
            write_text(self.path, json.dumps(self._content, indent=1))
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from error

    def result(self, step: str) -> Any:
        """Return the result of a finished step; None if it is not finished."""
        return self._done.get(step)

    def discard(self, step: str) -> None:
        """Have a step run again."""
        del self._done[step]
        self._write()

    def once(self, step: str, run: Callable[[], Any]) -> Any:
        """Return the result of a step, which is run unless an earlier call did."""
        if step in self._done:
            print(f"{step}: already done")
        else:
            start_time = time.monotonic()
            self._done[step] = run()
            self.spend(step, time.monotonic() - start_time)
            self._write()
        return self._done[step]


_SUFFIXES = IMAGE_SUFFIXES | {*ANNOTATION_SUFFIXES, ".names"}


def source_folder(config: QuickstartConfig, folder: Path, *, fingerprint: str, state: State) -> str:
    """Return the folder of the images, into which an archive is unpacked once. fingerprint: `source_fingerprint`.

    Raises:
        InputError: images or labels changed after their conversion, also in the unpacked folder.
    """
    state.require_same(
        "source",
        fingerprint,
        where=state.path,
        advice="expected the same until it has finished, or another --output_dir; a round begins again once its folder "
        "is removed",
    )
    if not os.path.isfile(config.images):
        return config.images
    images = folder / "images"
    archive = hashlib.sha256(archive_digest(config.images)).hexdigest()
    unpacked_archive(config.images, images, fingerprint=archive)
    hasher = hashlib.sha256()
    _add_files(hasher, images)
    state.require_same(
        "unpacked",
        hasher.hexdigest(),
        where=images,
        advice=f"to train on them, run: python quickstart.py {shlex.quote(str(images))} --output_dir=ANOTHER_FOLDER",
    )
    return str(images)


def source_fingerprint(config: QuickstartConfig) -> str:
    """Return a fingerprint of the names and contents of labels and images, or of the archive.

    Files in the output folder are not included, which may be in the folder of the images, unless the images are in it.
    Of a source that does not exist nothing is, which the conversion reports.
    """
    hasher, output = hashlib.sha256(), Path(config.output_dir).resolve()
    for source in filter(None, (config.images, *_label_sources(config.annotations))):
        if archive_kind(source):
            hasher.update(archive_digest(source))
        else:
            is_inside = Path(source).resolve().is_relative_to(output)
            _add_files(hasher, Path(source), except_below=None if is_inside else output)
    return hasher.hexdigest()


def _label_sources(annotations: str | None) -> list[str]:
    """Return the files and folders of the labels; those of YOLO lie beside the file that names their classes."""
    if not annotations:
        return []
    path = Path(annotations)
    if not path.is_dir():
        return [str(path.parent) if names_classes(path) else annotations]
    return [annotations, *map(str, class_files_beside(path))]


def _add_files(hasher: "hashlib._Hash", path: Path, *, except_below: Path | None = None) -> None:
    files = map(path.joinpath, FolderFiles(path, _SUFFIXES).names) if path.is_dir() else [path]
    for file in files:
        if except_below is None or not file.resolve().is_relative_to(except_below):
            hasher.update(f"{file} {_content(file)}\n".encode())


def _content(file: Path) -> str:
    """Return the hash of a file; empty for an unreadable one, which converters report."""
    try:
        hasher = hashlib.sha256()
        with open_regular_file(file) as content:
            while block := content.read(1 << 20):
                hasher.update(block)
        return hasher.hexdigest()
    except OSError:
        return ""
