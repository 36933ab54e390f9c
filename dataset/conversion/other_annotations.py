"""Recognize annotations of another format than the converter reads, and suggest the right converter."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dataset.files.file_kinds import FileKind, annotations_in, kind_and_advice, kind_of_file
from program_support.errors import InputError

_EXPECTED = {
    FileKind.COCO: "a COCO json (instances_*.json)",
    FileKind.VOC: "a folder of Pascal VOC XML files",
    FileKind.OPEN_IMAGES: "a csv of Open Images boxes (oidv6-train-annotations-bbox.csv)",
}
_CONVERTERS = {
    FileKind.COCO: "dataset/create_coco_tfrecord.py --object_annotations_file={path}",
    FileKind.VOC: "dataset/create_pascal_tfrecord.py --annotations_dir={folder}",
    FileKind.OPEN_IMAGES: "dataset/create_open_images_tfrecord.py --object_annotations_file={path}",
}
_ANY_FORMAT = "dataset/create_tfrecord.py --images=FOLDER --annotations={path}"
_FILE_PER_IMAGE = (FileKind.YOLO_LABELS, FileKind.LABELME, FileKind.DOTA, FileKind.VISDRONE)
_REPORTED_BY_READER = (FileKind.JSON, FileKind.COCO_RESULTS)


@contextlib.contextmanager
def recognized(*paths: str, expected: FileKind) -> Iterator[None]:
    """Replace an InputError in the block by a clearer one if the files have another format.

    The format is checked only after an error, so that large files are not read twice.
    """
    try:
        yield
    except InputError as error:
        for path in filter(None, paths):
            if message := (_recognized_folder if Path(path).is_dir() else _recognized_file)(path, expected):
                raise InputError(message) from error
        raise


def _recognized_file(path: str, expected: FileKind) -> str | None:
    kind = kind_of_file(path)
    if kind is None or kind in _REPORTED_BY_READER or (kind is expected and kind is not FileKind.VOC):
        return None
    if (kind, expected) == (FileKind.CSV, FileKind.OPEN_IMAGES):
        return None  # the reader reports which column is missing
    return _message(Path(path), kind, expected=expected)


def _recognized_folder(folder: str, expected: FileKind) -> str | None:
    by_kind = {kind: path for path, kind in reversed([*annotations_in(folder)])}  # the first file of each
    if expected in by_kind:
        if expected is not FileKind.VOC:
            return f"{folder}: is a folder, expected a file of it: --object_annotations_file={by_kind[expected]}"
        return None
    return next((_message(path, kind, expected=expected) for path, kind in annotations_in(folder)), None)


def _message(path: Path, kind: FileKind, *, expected: FileKind) -> str:
    if kind is FileKind.UNREAD:
        return f"{path}: is {kind_and_advice(path)[1]}"
    advice = ""
    if kind is FileKind.ZIP:
        advice = ": unpack it first"
    elif kind.holds_annotations:
        given = path.parent if kind in _FILE_PER_IMAGE else path
        advice = f": use {_CONVERTERS.get(kind, _ANY_FORMAT).format(path=given, folder=path.parent)}"
    return f"{path}: is {kind.value}, expected {_EXPECTED[expected]}{advice}"
