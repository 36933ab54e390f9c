"""Reader of an ONNX file's metadata without the package onnx."""

from collections.abc import Iterator

_METADATA_PROPS = 14  # field number in ONNX's ModelProto
_KEY, _VALUE = 1, 2  # field numbers of StringStringEntryProto
_BYTES, _VARINT, _WIDTHS = 2, 0, {1: 8, 5: 4}  # protobuf wire types, and lengths of the fixed ones


def onnx_props(model: bytes) -> dict[str, str]:
    """Return `metadata_props` by name.

    Raises:
        ValueError: this is not an ONNX file.
    """
    try:
        return dict(_props(memoryview(model)))
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


def _props(model: memoryview) -> Iterator[tuple[str, str]]:
    for number, value in _fields(model):
        if number == _METADATA_PROPS:
            entry = {key: bytes(part).decode() for key, part in _fields(value)}
            yield entry.get(_KEY, ""), entry.get(_VALUE, "")


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of length-delimited protobuf fields.

    Raises:
        ValueError: IndexError.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            length, place = _varint(message, place)
            if place + length > len(message):
                raise ValueError(f"field {number} exceeds the file's size")
            yield number, message[place : place + length]
            place += length
        elif kind == _VARINT:
            _, place = _varint(message, place)
        elif kind in _WIDTHS:
            place += _WIDTHS[kind]
        else:
            raise ValueError(f"field {number} has wire type {kind}")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
        if shift > 63:
            raise ValueError("a varint is too long")
