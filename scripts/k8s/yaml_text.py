"""Write mappings, lists and scalars as readable YAML, as far as jobs need it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Words, paths and flags that every YAML parser reads as text. Everything else is quoted as in JSON, which is valid
# YAML.
_PLAIN = re.compile(r"(--?[a-z]|[A-Za-z]|/[a-z])[A-Za-z0-9_./=-]*")
_RESERVED = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}  # of YAML 1.1 and 1.2, in any case
_SHORT = 64  # characters of a collection that is written on one line


def document(value: Mapping[str, Any], *, comment: str) -> str:
    """Return one document; its first line is a comment."""
    lines = [line for key, inner in value.items() for line in _entry(key, inner, "")]
    return "\n".join([f"# {comment}", *lines]) + "\n"


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    """Return the lines of a key and its value."""
    if (short := _on_one_line(value)) is not None:
        yield f"{indent}{_scalar(key)}: {short}"
        return
    yield f"{indent}{_scalar(key)}:"
    yield from _lines(value, indent + ("  " if isinstance(value, Mapping) else ""))


def _lines(value: Any, indent: str) -> Iterator[str]:
    """Return the lines of a collection that is too long for one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(key, inner, indent)
        return
    for inner in value:
        if (short := _on_one_line(inner)) is not None:
            yield f"{indent}- {short}"
        else:
            first, *others = _lines(inner, indent + "  ")
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from others


def _on_one_line(value: Any) -> str | None:
    """Return a value on one line; None for a collection that is longer."""
    if not isinstance(value, Mapping) and not _is_list(value):
        return _scalar(value)
    text = _flow(value)
    return text if len(text) <= _SHORT else None


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if _is_list(value) else _scalar(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
    return value if is_plain else json.dumps(value)
