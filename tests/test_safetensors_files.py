"""Files of safetensors, built byte by byte (test_torch_files.py reads one that the package safetensors wrote)."""

import json
import struct

import numpy as np
import pytest

from efficientdet.plugins.torch_weights import safetensors_files
from program_support.errors import InputError


def written(path, header, data=b"", *, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.safetensors"


def test_arrays_in_any_order_of_the_header(path):
    header = {
        "__metadata__": {"format": "pt"},
        "b": entry("I16", (1, 2), 8, 12),
        "a": entry(),
        "nothing": entry("F64", (0, 3), 8, 8),
        "scalar": entry("BOOL", (), 12, 13),
        "brain": entry("BF16", (1,), 13, 15),
    }
    found = safetensors_files.read(written(path, header, struct.pack("<2f2hBH", 1, 2, -3, 4, 1, 0x4040)))
    assert list(found) == ["a", "b", "brain", "nothing", "scalar"]
    np.testing.assert_array_equal(found["a"], np.float32([1, 2]))
    np.testing.assert_array_equal(found["b"], np.int16([[-3, 4]]))
    assert (found["nothing"].shape, found["nothing"].dtype) == ((0, 3), np.float64)
    assert found["scalar"].shape == ()
    assert found["scalar"].dtype == bool
    assert found["scalar"].item() is True
    np.testing.assert_array_equal(found["brain"], np.float32([3]))


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry()}, bytes(7), "file not fully covered"),
        ({"a": entry(begin=1, end=9)}, bytes(9), "invalid offset for tensor `a`"),
        ({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12), "invalid offset for tensor `b`"),
        ({"a": entry(end=4)}, bytes(4), "is truncated, damaged"),
        ({"a": entry(shape=(-2,))}, bytes(8), "invalid JSON in header"),
        ({"a": entry(shape=(2**40,), end=2**42)}, bytes(8), "file not fully covered"),
        ({"a": entry("F8_E4M3", end=2)}, bytes(2), "'a' has data type F8_E4M3"),
        ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
        ({}, b"", "holds no arrays"),
        (b"\xff{}", b"", "invalid UTF-8 in header"),
        (b'{"a": ' + b"[" * 100_000, b"", "recursion limit"),
    ],
)
def test_wrong_files_are_told_in_one_line(path, header, data, message):
    with pytest.raises(InputError, match=message) as caught:
        safetensors_files.read(written(path, header, data))
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) < 500 + len(str(path))
    assert "\n" not in str(caught.value)


def test_a_length_that_is_not_there_is_not_allocated(path):
    for length, message in ((2**62, "header too large"), (2**23, "invalid header length")):
        with pytest.raises(InputError, match=message):
            safetensors_files.read(written(path, {"a": entry()}, bytes(8), length=length))
    path.write_bytes(b"\0" * 5)
    with pytest.raises(InputError, match="header too small"):
        safetensors_files.read(path)


def test_a_file_that_would_exhaust_memory_is_refused(path):
    with open(path, "wb") as stream:
        stream.truncate(2**40)
    with pytest.raises(InputError, match="it has 1099511627776 bytes; the limit is 1073741824"):
        safetensors_files.read(path)
