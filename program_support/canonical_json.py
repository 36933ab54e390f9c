"""Values as text that is equal in every process: a `repr` lists a set in the order of the process's hash seed."""

import dataclasses
import json
import os
from typing import Any


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, of which sets are sorted lists, dataclasses mappings, and tuples lists.

    Raises:
        TypeError: for a value of another type.
    """
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=canonical_json)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} has no canonical form")
