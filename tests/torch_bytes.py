"""Files of torch built byte by byte, right and wrong ones: operations of a pickle (see `pickletools`), then a zip."""

import io
import struct
import zipfile

NUMBERS = struct.pack("<6f", *range(6))  # of a storage of 6


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def integer(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


def named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def tuple_of(*items: bytes) -> bytes:
    return b"(" + b"".join(items) + b"t"


def dictionary(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in values.items()) + b"u"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def storage(count=6, *, kind="FloatStorage", key="0") -> bytes:
    return tuple_of(text("storage"), named("torch", kind), text(key), text("cpu"), integer(count)) + b"Q"


def tensor(shape=(6,), strides=(1,), offset=0, *, of=None, metadata=b"") -> bytes:
    numbers = [tuple_of(*map(integer, values)) for values in (shape, strides)]
    return call(
        named("torch._utils", "_rebuild_tensor_v2"),
        of or storage(),
        integer(offset),
        *numbers,
        b"\x89",
        call(named("collections", "OrderedDict")),
        metadata,
    )


def pickled(value: bytes) -> bytes:
    return b"\x80\x02" + value + b"."


def zipped(value: bytes, *, numbers=NUMBERS, members=None, compression=zipfile.ZIP_STORED) -> bytes:
    """`value`, operations of a pickle, in torch's zip, whose only storage has the key 0."""
    content = io.BytesIO()
    every = {"archive/data.pkl": pickled(value), "archive/data/0": numbers, **(members or {})}
    with zipfile.ZipFile(content, "w", compression) as archive:
        for name, member in every.items():
            if member is not None:
                archive.writestr(name, member)
    return content.getvalue()
