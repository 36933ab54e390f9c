"""Read single fields of serialized `tf.train.Example`s in place, without TensorFlow and without reading the image.

The encoding is protocol buffers' (https://protobuf.dev/programming-guides/encoding): Example {1: Features}, Features
{1: map of key to Feature}, a map's entry {1: key, 2: value}, Feature {1: bytes, 2: floats, 3: integers}, each a list
{1: values}.
"""

from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # the number of a list in a Feature
_VARINT, _EIGHT, _COUNTED, _FOUR = 0, 1, 2, 5  # wire types
_MOST_VARINT_BITS = 63


class Buffer(Protocol):
    """Bytes, or a file mapped into memory."""

    def __getitem__(self, place): ...


def record_fields(
    buffer: Buffer, start: int, end: int, keys: Collection[bytes] | None
) -> dict[bytes, list | np.ndarray]:
    """Return features of the record at start .. end, of these keys or all: a list of bytes, [n] float32, or [n] int64.

    Raises:
        ValueError: for an invalid Example.
    """
    values = {}
    try:
        for features, first, last in message_fields(buffer, start, end):
            for entry, begin, stop in message_fields(buffer, first, last) if features == 1 else ():
                parts = (
                    {number: (low, high) for number, low, high in message_fields(buffer, begin, stop)}
                    if entry == 1
                    else {}
                )
                key = bytes(buffer[slice(*parts[1])]) if 1 in parts else b""
                if 2 in parts and (keys is None or key in keys):
                    values[key] = _feature(buffer, *parts[2])
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("ends in the middle of a field") from error
    return values


def _feature(buffer: Buffer, start: int, end: int) -> list | np.ndarray:
    for kind, first, last in message_fields(buffer, start, end):
        spans = [(low, high) for number, low, high in message_fields(buffer, first, last) if number == 1]
        if kind == _BYTES:
            return [bytes(buffer[low:high]) for low, high in spans]
        if kind == _FLOATS:
            return np.frombuffer(b"".join(buffer[low:high] for low, high in spans), "<f4").astype(np.float32)
        if kind == _INTEGERS:
            return np.array([value for low, high in spans for value in _varints(buffer, low, high)], np.int64)
    return []


def message_fields(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a protocol buffers message at start .. end.

    Raises:
        ValueError, IndexError: for an invalid message.
    """
    place = start
    while place < end:
        tag, place = _varint(buffer, place)
        kind, first = tag & 7, place
        if kind == _COUNTED:
            length, first = _varint(buffer, place)
            place = first + length
        elif kind == _VARINT:
            _, place = _varint(buffer, place)
        elif kind in (_EIGHT, _FOUR):
            place += 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"has a field of kind {kind}")
        if place > end:
            raise ValueError("ends in the middle of a field")
        yield tag >> 3, first, place


def _varints(buffer: Buffer, start: int, end: int) -> Iterator[int]:
    while start < end:
        value, start = _varint(buffer, start)
        yield value - (1 << 64) if value >= 1 << _MOST_VARINT_BITS else value


def _varint(buffer: Buffer, place: int) -> tuple[int, int]:
    """Read a variable-length integer (seven bits per byte); return it and its end."""
    value, shift = 0, 0
    while shift <= _MOST_VARINT_BITS:
        byte = buffer[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("has a number of more than 64 bits")
