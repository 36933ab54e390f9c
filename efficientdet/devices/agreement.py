"""Processes that train or evaluate together compare their settings first: different ones would compute nonsense."""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataset.records.record_index import RecordIndex
from efficientdet.devices.distributed import World
from program_support.canonical_json import canonical_json
from program_support.errors import InputError
from program_support.installation import program_digest

_LIBRARIES = ("tensorflow", "keras", "numpy", "jax", "horovod")
_SHOWN_SETTINGS, _SHOWN_CHARACTERS = 4, 60


def require_agreement(
    config: Any, world: World, *, rank_fields: Collection[str] = (), index: RecordIndex | None = None
) -> None:
    """Raise InputError, on all processes, that names the settings in which they differ.

    Args:
      config: a dataclass; its fields are compared, those of dataclasses in them included.
      world: the processes.
      rank_fields: fields that may differ between processes, such as paths on their machines.
      index: the records, of which names, sizes and positions are compared.
    """
    if world.size == 1:
        return
    settings = {**_code_version(), **_fields(config, rank_fields)}
    if index is not None:
        settings["records"] = f"{len(index)} in {len(index.paths)} files, {_digest_of_index(index)}"
    gathered = world.gather(settings)
    names = dict.fromkeys(name for each in gathered for name in each)
    different = [name for name in names if len({each.get(name) for each in gathered}) > 1]
    if different:
        shown = "; ".join(_difference(name, gathered) for name in different[:_SHOWN_SETTINGS])
        more = f"; and {len(different) - _SHOWN_SETTINGS} more" if len(different) > _SHOWN_SETTINGS else ""
        raise InputError(f"the processes differ in {shown}{more}: expected the same command, records and code in each")


def _difference(name: str, gathered: list[dict[str, str]]) -> str:
    """Return the name of a setting, and the values of the first process and of the first one that differs."""
    values = [each.get(name, "missing") for each in gathered]
    other = next(number for number, value in enumerate(values) if value != values[0])
    first, second = (value[:_SHOWN_CHARACTERS] for value in (values[0], values[other]))
    return f"{name} (process 0: {first}, process {other}: {second})"


def _fields(config: Any, rank_fields: Collection[str]) -> dict[str, str]:
    """Return the fields of a dataclass by the names of their flags, in a form that is equal in every process."""
    settings: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in rank_fields:
            continue
        if field.name == "hparams":
            settings |= {f"hparam {key}": canonical_json(each) for key, each in value.to_dict().items()}
        elif field.name == "model":
            settings |= _fields(value, rank_fields)
        else:
            settings[f"--{field.name}"] = canonical_json(value)
    return settings


def _code_version() -> Mapping[str, str]:
    """Return a digest of the program's source files, and the versions of libraries."""
    versions = {}
    for library in _LIBRARIES:
        try:
            versions[f"the version of {library}"] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"the code of this program": program_digest(), **versions}


def _digest_of_index(index: RecordIndex) -> str:
    """Return a hash of the names of files, without folders, and of the positions of records."""
    digest = hashlib.sha256("\0".join(Path(path).name for path in index.paths).encode())
    for array in (index.file_numbers, index.offsets, index.lengths):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]
