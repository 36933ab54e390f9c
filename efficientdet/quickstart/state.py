"""State file of a quick start, with which a second call resumes."""

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataset.conversion.folder_files import FolderFiles
from dataset.conversion.formats.yolo import class_files_beside, names_classes
from dataset.files.bounded_files import open_regular_file
from dataset.files.file_kinds import ANNOTATION_SUFFIXES
from dataset.files.image_files import IMAGE_SUFFIXES
from efficientdet.options.quickstart import QuickstartConfig
from program_support.archives import archive_digest, archive_kind
from program_support.atomic_files import write_text
from program_support.claimed_outputs import unpacked_archive
from program_support.errors import InputError

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
            self._seconds[step] = self._seconds.get(step, 0.0) + round(time.monotonic() - start_time, 1)
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
