"""Files and folders that flags name: found, made or refused before anything slow is imported."""

import os
import tempfile
from pathlib import Path

from dataset.class_names import ClassNames, class_names_of_records, read_class_names
from dataset.records.record_files import expand_glob
from efficientdet.configuration.flag_definitions import typed_name
from program_support.errors import InputError


def required(value: str | None, flag: str) -> str:
    """The value of a flag that has no default; raises InputError where it was not given."""
    if not value:
        raise InputError(f"--{typed_name(flag)} is missing")
    return value


def records_of(pattern: str | None, flag: str) -> tuple[str, ...]:
    """The shards that a flag's pattern names, sorted."""
    return tuple(expand_glob(required(pattern, flag)))


def existing_file(path: str | None, flag: str) -> str | None:
    """The path, if a file is there or none was given."""
    if path and not os.path.isfile(path):
        raise InputError(f"--{typed_name(flag)}={path}: there is no such file")
    return path or None


def writable_folder(path: str | None, flag: str) -> str:
    """The folder, made if absent; raises InputError where that cannot be done, or nothing can be written into it."""
    folder = Path(required(path, flag))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--{typed_name(flag)}={path}: cannot be made a folder ({error.strerror})") from error
    try:
        with tempfile.TemporaryFile(dir=folder):  # the mode alone tells nothing of a read-only disk or of root on NFS
            pass
    except OSError as error:
        raise InputError(f"--{typed_name(flag)}={path}: nothing can be written into this folder ({error.strerror})") from error
    return str(folder)


def writable_file(path: str | None, flag: str) -> str | None:
    """The path, if none was given or a file can be written there; its folder is made."""
    if path and os.path.isdir(path):
        raise InputError(f"--{typed_name(flag)}={path}: is a folder; expected the name of a file")
    if path:
        writable_folder(str(Path(path).parent), flag)
    return path or None


def class_names_for(records: tuple[str, ...], *, json_file: str | None) -> ClassNames:
    """The classes that stand beside the records or, for records made elsewhere, in a COCO json.

    Raises InputError where there are none, or where the names in the two differ. Category ids may.
    """
    beside = class_names_of_records(list(records))
    in_json = read_class_names(json_file) if json_file else None
    if beside is None and in_json is None:
        raise InputError(f"{records[0]}: no .classes.json beside the records; pass a COCO json with --val_json_file")
    if beside is not None and in_json is not None and not beside.has_names_of(in_json):
        raise InputError(f"{json_file}: its categories ({_shown(in_json)}) are not the classes of the records "
                         f"({_shown(beside)})")
    return beside or in_json


def _shown(class_names: ClassNames) -> str:
    pairs = [f"{i} {name}" for i, name in zip(class_names.category_ids, class_names.names, strict=True)]
    return ", ".join(pairs[:6]) + (", .." if len(pairs) > 6 else "")
