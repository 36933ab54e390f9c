"""Check the files and folders that flags name, before slow imports."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dataset.class_names import ClassNames, class_file_of, class_names_of_records, read_class_names
from dataset.files.file_kinds import FileKind, holds_records, kind_of_file
from dataset.files.image_files import IMAGE_SUFFIXES, find_images
from dataset.records.labeled_records import classes_in_records, label_map_beside, require_names_beside
from dataset.records.record_files import expand_glob
from efficientdet.options.removed_flags import ALIASES
from program_support.errors import InputError
from program_support.remote_addresses import is_remote


def required(value: str | None, flag: str) -> str:
    """Return the value of a required flag.

    Raises:
        InputError: it was not given.
    """
    if not value:
        raise InputError(f"--{typed_name(flag)} is missing")
    return value


def records_of(pattern: str | None, flag: str) -> tuple[str, ...]:
    """Return the shards that match a flag's glob pattern, sorted."""
    return tuple(expand_glob(required(pattern, flag)))


def images_or_records(names: Sequence[str], flag: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the images, or the shards of records, that paths, folders and glob patterns name; the other is ().

    The content of the files decides, the name of an empty one.

    Raises:
        InputError: there is neither, or both.
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
            problem = f"is {kind.value}" if kind else "holds neither an image nor records"
            raise InputError(f"--{typed_name(flag)}: {path}: {problem}; expected images or records")
    return files, ()


def existing_file(path: str | None, flag: str) -> str | None:
    """Return the path of a file, or None if the flag was not given.

    Raises:
        InputError: there is no such file.
    """
    if path and not os.path.isfile(path):
        raise InputError(f"--{typed_name(flag)}={path}: there is no such file")
    return path or None


def writable_folder(path: str | None, flag: str) -> str:
    """Create the folder if it does not exist and return it.

    Raises:
        InputError: it is not writable.
    """
    folder = Path(required(path, flag))
    if is_remote(str(path)):
        raise InputError(f"--{typed_name(flag)}={path}: is a remote address; expected a folder of this machine")
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
    """Create the folder of a file and return the path, or None if none was given.

    Raises:
        InputError: for a folder.
    """
    if path and os.path.isdir(path):
        raise InputError(f"--{typed_name(flag)}={path}: is a folder; expected a file name")
    if path:
        writable_folder(str(Path(path).parent), flag)
    return path or None


def class_names_for(
    records: tuple[str, ...],
    *,
    json_file: str | None,
    json_flag: str | None = "val_json_file",
    other_records: tuple[str, ...] = (),
    of_checkpoint: ClassNames | None = None,
) -> ClassNames:
    """Return the classes of the records: from the file beside them, from the records, else from a COCO JSON file.

    Objects in the records of other tools may name a part of the classes: `other_records`, the JSON file and the
    checkpoint complete them. Category ids may differ. `json_flag`: the program's flag for the JSON file, for messages.

    Raises:
        InputError: there are none, or if the names in the files differ.
    """
    if beside := class_names_of_records(list(records)):
        require_names_beside(records, beside)
    beside = beside or label_map_beside(records)
    in_json = read_class_names(json_file) if json_file else None
    if beside is None:
        named = classes_in_records([*records, *other_records])
        names = _completed(named, *filter(None, (in_json, of_checkpoint)))
        if names is None:
            raise InputError(
                f"{records[0]}: names no classes; expected {class_file_of(records[0]).name} or a label map (.pbtxt) "
                "beside it, or names in its records (image/object/class/text)"
                + (f"; or pass a COCO json with --{json_flag}" if json_flag else "")
            )
        return names
    if in_json is not None and not beside.has_names_of(in_json):
        raise InputError(
            f"{json_file}: its categories ({_shown(in_json)}) are not the classes of the records ({_shown(beside)})"
        )
    return beside


def _completed(class_names: ClassNames | None, *others: ClassNames) -> ClassNames | None:
    """Return the classes with those of others that they lack, under their ids where these are free."""
    if class_names is None:
        return next(iter(others), None)
    names = class_names.by_id()
    for other in others:
        for category_id, name in other.by_id().items():
            if name not in names.values():
                names[max(names) + 1 if category_id in names else category_id] = name
    return ClassNames.from_pairs(names.items())


def _shown(class_names: ClassNames) -> str:
    pairs = [f"{i} {name}" for i, name in class_names.by_id().items()]
    return ", ".join(pairs[:6]) + (", ..." if len(pairs) > 6 else "")


def typed_name(name: str) -> str:
    """Return the name under which a flag was given: its own name or an alias."""
    given = [
        alias
        for aliases in ALIASES.values()
        for alias, original in aliases.items()
        if original == name and alias in flags.FLAGS and flags.FLAGS[alias].present
    ]
    return given[0] if given else name
