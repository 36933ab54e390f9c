"""The images and labels of a quick start, and their fingerprint, by which a later call finds that they changed."""

import functools
import hashlib
import os
import shlex
from pathlib import Path

from dataset.conversion.folder_files import FolderFiles
from dataset.conversion.formats.yolo.yolo_layout import class_files_beside, names_classes
from dataset.files.bounded_files import open_regular_file
from dataset.files.file_kinds import ANNOTATION_SUFFIXES
from dataset.files.image_files import IMAGE_SUFFIXES
from efficientdet.quickstart.configuration import QuickstartConfig
from efficientdet.quickstart.state import State
from program_support.archives import archive_digest, archive_kind
from program_support.claimed_outputs import unpacked_archive

_SUFFIXES = IMAGE_SUFFIXES | {*ANNOTATION_SUFFIXES, ".names"}


def source_folder(config: QuickstartConfig, folder: Path, *, state: State) -> str:
    """Return the folder of the images, into which an archive is unpacked once.

    Raises:
        InputError: images or labels changed after their conversion, also in the unpacked folder.
    """
    state.require_same(
        "source",
        source_fingerprint(config),
        where=folder / "quickstart.json",
        advice="expected the same, or another --output_dir",
    )
    if not os.path.isfile(config.images):
        return config.images
    images = folder / "images"
    unpacked_archive(config.images, images, fingerprint=_archive_fingerprint(config.images))
    state.require_same(
        "unpacked",
        _folder_fingerprint(images),
        where=images,
        advice=f"to train on them, run: python quickstart.py {shlex.quote(str(images))} --output_dir=ANOTHER_FOLDER",
    )
    return str(images)


def source_of_round(config: QuickstartConfig, folder: Path, *, state: State) -> str:
    """Return the folder of the images; a round whose training has begun is finished with the images it converted."""
    if state.source in (None, source_fingerprint(config)):
        return source_folder(config, folder, state=state)
    print("images or labels changed again: this round ends with those that it converted, and the next one follows")
    return config.images if os.path.isdir(config.images) else str(folder / "images")


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


def _archive_fingerprint(archive: str) -> str:
    """Return a fingerprint of the names and contents of the files in an archive."""
    return hashlib.sha256(archive_digest(archive)).hexdigest()


def _folder_fingerprint(folder: Path) -> str:
    """Return a fingerprint of the names and contents of labels and images in a folder."""
    hasher = hashlib.sha256()
    _add_files(hasher, folder)
    return hasher.hexdigest()


def _add_files(hasher: "hashlib._Hash", path: Path, *, except_below: Path | None = None) -> None:
    files = map(path.joinpath, FolderFiles(path, _SUFFIXES).names) if path.is_dir() else [path]
    for file in files:
        if except_below is None or not file.resolve().is_relative_to(except_below):
            hasher.update(f"{file} {_content(file)}\n".encode())


def _content(file: Path) -> str:
    """Return the hash of a file; empty for an unreadable one, which converters report."""
    try:
        status = file.stat()
        return _digest(file, status.st_size, status.st_mtime_ns)
    except OSError:
        return ""


@functools.cache  # a call asks several times
def _digest(file: Path, size: int, time_ns: int) -> str:
    hasher = hashlib.sha256()
    with open_regular_file(file) as content:
        while block := content.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
