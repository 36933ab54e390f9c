"""Check the files and folders that flags name, before slow imports."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dataset.class_names import ClassNames, class_names_of_records, read_class_names
from dataset.files.file_kinds import FileKind, holds_records, kind_of_file
from dataset.files.image_files import IMAGE_SUFFIXES, find_images
from dataset.records.record_files import expand_glob
from efficientdet.configuration.flag_definitions import typed_name
from program_support.errors import InputError


def required(value: str | None, flag: str) -> str:
    """Return the value of a required flag. Raise InputError if it was not given."""
    if not value:
        raise InputError(f"--{typed_name(flag)} is missing")
    return value


def records_of(pattern: str | None, flag: str) -> tuple[str, ...]:
    """Return the shards that match a flag's glob pattern, sorted."""
    return tuple(expand_glob(required(pattern, flag)))


def images_or_records(names: Sequence[str], flag: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the images, or the shards of records, that paths, folders and glob patterns name; the other is ().

    The content of the files decides, the name of an empty one. Raise InputError if there is neither, or both.
    """
    try:
        files = find_images(names, flag=flag)
    except InputError:
        if folders := [name for name in names if os.path.isdir(name)]:
            expand_glob(folders[0])  # raises an error that says which records are in the folder
        raise
    if any(holds_records(path) or path.endswith(".tfrecord") for path in files):  # a shard may be empty
        return (), tuple(path for name in names for path in expand_glob(name))
    for path in files:
        kind = kind_of_file(path)
        if kind is not FileKind.IMAGE and (kind or Path(path).suffix.lower() not in IMAGE_SUFFIXES):
            found = f"is {kind.value}" if kind else "holds neither an image nor records"
            raise InputError(f"--{typed_name(flag)}: {path}: {found}; expected images or records")
    return files, ()


def existing_file(path: str | None, flag: str) -> str | None:
    """Return the path of a file, or None if the flag was not given. Raise InputError if there is no such file."""
    if path and not os.path.isfile(path):
        raise InputError(f"--{typed_name(flag)}={path}: there is no such file")
    return path or None


def writable_folder(path: str | None, flag: str) -> str:
    """Create the folder if it does not exist and return it. Raise InputError if it is not writable."""
    folder = Path(required(path, flag))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--{typed_name(flag)}={path}: cannot create this folder ({error.strerror})") from error
    try:
        with tempfile.TemporaryFile(dir=folder):  # The mode does not show a read-only disk, or root on NFS.
            pass
    except OSError as error:
        raise InputError(f"--{typed_name(flag)}={path}: cannot write into this folder ({error.strerror})") from error
    return str(folder)


def writable_file(path: str | None, flag: str) -> str | None:
    """Create the folder of a file and return the path, or None if none was given. Raise InputError for a folder."""
    if path and os.path.isdir(path):
        raise InputError(f"--{typed_name(flag)}={path}: is a folder; expected a file name")
    if path:
        writable_folder(str(Path(path).parent), flag)
    return path or None


def class_names_for(records: tuple[str, ...], *, json_file: str | None) -> ClassNames:
    """Return the classes of the records: from the file beside them, else from a COCO JSON file.

    Raise InputError if there are none, or if the names in the two files differ. Category ids may differ.
    """
    beside = class_names_of_records(list(records))
    in_json = read_class_names(json_file) if json_file else None
    names = beside or in_json
    if names is None:
        raise InputError(f"{records[0]}: no .classes.json beside the records; pass a COCO json with --val_json_file")
    if beside is not None and in_json is not None and not beside.has_names_of(in_json):
        raise InputError(
            f"{json_file}: its categories ({_shown(in_json)}) are not the classes of the records ({_shown(beside)})"
        )
    return names


def _shown(class_names: ClassNames) -> str:
    pairs = [f"{i} {name}" for i, name in zip(class_names.category_ids, class_names.names, strict=True)]
    return ", ".join(pairs[:6]) + (", ..." if len(pairs) > 6 else "")
