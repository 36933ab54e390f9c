"""Processes that train or evaluate together compare their settings first: different ones would compute nonsense."""

import dataclasses
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from dataset.records.record_index import RecordIndex
from efficientdet.devices.device import versions
from efficientdet.devices.distributed import World
from program_support.errors import InputError
from program_support.installation import canonical_json, program_digest

_COMPARED = ("tensorflow", "keras", "numpy", "jax", "jaxlib", "horovod")  # packages that compute


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
    settings = {
        "the code of this program": program_digest(),
        **{f"the version of {name}": version for name, version in versions().items() if name in _COMPARED},
        "records": None if index is None else _digest_of_index(index),
        **_fields(config, rank_fields),
    }
    gathered = world.gather({name: canonical_json(value) for name, value in settings.items()})
    names = dict.fromkeys(name for each in gathered for name in each)
    if different := [name for name in names if len({each.get(name) for each in gathered}) > 1]:
        raise InputError(
            f"the processes differ in {', '.join(different)}: expected the same command, records and code in each"
        )


def _fields(config: Any, rank_fields: Collection[str]) -> dict[str, Any]:
    """Return the fields of a dataclass by the names of their flags."""
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in rank_fields:
            continue
        if field.name == "hparams":
            settings |= {f"hparam {key}": each for key, each in value.to_dict().items()}
        elif field.name == "model":
            settings |= _fields(value, rank_fields)
        else:
            settings[f"--{field.name}"] = value
    return settings


def _digest_of_index(index: RecordIndex) -> str:
    """Return a hash of the names of files, without folders, and of the positions of records."""
    digest = hashlib.sha256("\0".join(Path(path).name for path in index.paths).encode())
    for array in (index.file_numbers, index.offsets, index.lengths):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
