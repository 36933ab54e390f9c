"""Files that attack a reader of torch's files: each ends in one line, runs nothing and takes little memory."""

import io
import os
import pickle
import struct
import tarfile
import tracemalloc

import numpy as np
import pytest
from oracles import TESTDATA
from torch_bytes import NUMBERS, call, dictionary, integer, named, storage, tensor, text, tuple_of, zipped

from efficientdet.weights import torch_files
from program_support.errors import InputError

HUGE = b"\x8b" + struct.pack("<i", 3 * 2**20) + b"\x01" * (3 * 2**20)  # an integer of millions of digits
ORDERED = named("collections", "OrderedDict")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
PAIR = tuple_of(text("a"), integer(1))
LAUGHS = text("ha") + b"q\x010" + b"h\1h\1\x86q\x010" * 60 + b"h\1"  # a tuple of two tuples of two ..: 2^60 texts
DEEP = b")" + b"\x85" * 150_000


class Runs:
    """Pickled by Python itself as a call of os.system."""

    def __reduce__(self):
        return os.system, ("touch touched",)


def message_of(path, content):
    """The message of reading `content`, which must be one line; None where it can be read."""
    path.write_bytes(content)
    found = None
    tracemalloc.start()
    try:
        torch_files.read(path)
    except InputError as error:
        found = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 300e6
    assert found is None or (found.startswith(f"{path}: ") and len(found) < 2000 and found.isprintable())
    return found


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_python_that_calls_the_shell_is_refused(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    value = pickle.dumps({"a": Runs()}, protocol).removesuffix(b".")
    assert f"refers to {os.system.__module__}.system" in message_of(tmp_path / "a.pth", zipped(value))
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (call(named("builtins", "getattr"), named("os", "path"), text("os")), "refers to builtins.getattr"),
        (named("collections", "OrderedDict.__init__.__globals__"), "refers to collections.OrderedDict.__init__"),
        (
            text("torch._utils") + text("_rebuild_tensor.__globals__") + b"\x93",
            "torch._utils._rebuild_tensor.__globals__",
        ),
        (named("copyreg", "_reconstructor"), "refers to copyreg._reconstructor"),
        (named("torch", "load"), "refers to torch.load"),
        (call(call(ORDERED), text("x")), "'Dictionary' object is not callable"),
        (REBUILD + dictionary(__defaults__=tuple_of(integer(1))) + b"b", "gives a state to a function"),
        (REBUILD + tuple_of(b"N", dictionary(__code__=b"N")) + b"b", "gives a state to a function"),
        (named("torch", "FloatStorage") + dictionary(number=text("O")) + b"b", "gives a state to a StorageKind"),
        (storage() + dictionary(count=integer(2**40)) + b"b", "gives a state to a Storage"),
        (b"N" + tuple_of(integer(1)) + b"Q", "has the persistent id (1,)"),
        (LAUGHS + b"Q", "has the persistent id (("),
        (tuple_of(text("storage"), LAUGHS, text("0"), text("cpu"), integer(6)) + b"Q", "has a storage ('storage', (("),
        (tuple_of(text("storage"), named("torch", "FloatStorage"), text("0"), text("cpu"), HUGE) + b"Q", "ValueError"),
        (DEEP, "holds a tuple"),
        (LAUGHS, "holds a tuple"),
        (dictionary(a=LAUGHS), "its entry 'a' is a tuple"),
        (b"}" + LAUGHS + b"Ns", "a key that is a tuple"),
        (b"(" + LAUGHS + b"Nd", "a key that is a tuple"),
        (call(ORDERED, b"](" + tuple_of(LAUGHS, b"N") + b"e"), "a key that is a tuple"),
        (b"}" + DEEP + b"Ns", "a key that is a tuple"),
        (b"(" + LAUGHS + b"\x91", "the operation FROZENSET"),
        (b"}" + HUGE + b"Ns", "a key that is a int"),
        (b"}" + integer(5) + tensor() + b"s", "its entry 5 is a Tensor"),
        (HUGE, "holds a int"),
        (dictionary(a=tensor(offset=2**70)), "from 0 to 281474976710656"),
        (
            dictionary(a=call(REBUILD, storage(), integer(0), tuple_of(HUGE), tuple_of(integer(1)))),
            "from 0 to 281474976710656",
        ),
        (dictionary(a=call(REBUILD, storage(), LAUGHS, LAUGHS, LAUGHS)), "from 0 to 281474976710656"),
        (dictionary(a=call(REBUILD, *[b"N"] * 100_000)), "positional arguments"),
        (call(named("torch.nn.parameter", "Parameter"), *[tensor()] * 1000), "positional arguments"),
        (b"\x96" + struct.pack("<Q", 2**40), "the operation BYTEARRAY8"),
        (b"\x8e" + struct.pack("<Q", 2**40), "the operation BINBYTES8"),
        (b"2" * 10, "the operation DUP"),
        (b"\xff", "the operation 255"),
        (b"", "IndexError"),
        (b"h\7", "UnpicklingError"),
        (b"t", "IndexError"),
        (b"I" + b"9" * 100_000 + b"\n", "ValueError"),
        (b"\x80\x63", "unsupported pickle protocol"),
    ],
)
def test_attacks_in_a_pickle_end_in_one_line(tmp_path, value, message):
    assert message in message_of(tmp_path / "a.pth", zipped(value))
    intact = (TESTDATA / "torch_zip.pth").read_bytes()
    assert message_of(tmp_path / "b.pth", intact) is None  # nothing of the attack stays in the process


def test_a_list_of_pairs_is_copied_once(tmp_path):
    """A short file would fill the memory with 20 million entries."""
    pairs = b"](" + b"".join(tuple_of(text(f"{number:05}"), integer(1)) for number in range(10_000)) + b"eq\1"
    again = ORDERED + b"q\2]q\3" + pairs + b"(" + b"h\2h\1\x85R" * 2000 + b"l"
    assert "holds a list" in message_of(tmp_path / "a.pth", zipped(again))
    once = call(ORDERED, b"](" + tuple_of(text("a"), tensor()) + b"e")
    assert message_of(tmp_path / "b.pth", zipped(once)) is None


def tar_of(**changed):
    """torch_tar.pth with changes of its members: name -> function of its TarInfo."""
    content = io.BytesIO()
    with tarfile.open(TESTDATA / "torch_tar.pth") as read, tarfile.open(fileobj=content, mode="w") as written:
        for member in read:
            data = read.extractfile(member)
            changed.get(member.name, lambda info: None)(member)
            written.addfile(member, data if member.isfile() else None)
    return content.getvalue()


def link(info):
    info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0


def outside(info):
    info.name = f"../../{info.name}"


def with_size(size):
    """The tar with another size in the first header, in the base of 256 that GNU's tar writes large ones in."""
    content = bytearray(tar_of())
    content[124:136] = b"\x80" + size.to_bytes(11, "big") if size >= 0 else (256**12 + size).to_bytes(12, "big")
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    return bytes(content)


def test_attacks_in_a_tar_end_in_one_line(tmp_path):
    path = tmp_path / "a.pth"
    extended = tarfile.TarInfo("storages")
    extended.type, extended.size = tarfile.XHDTYPE, 2**33
    numbers = extended.tobuf() + b"1" * 10**6
    for content, message in (
        (tar_of(storages=link), "a tar without storages"),
        (with_size(2**60), "cut short|without|damaged"),
        (with_size(-512), "cut short|without|damaged"),
        (numbers, "cut short|without|damaged"),
    ):
        found = message_of(path, content)
        assert found, message
        assert any(part in found for part in message.split("|")), found
    assert message_of(path, tar_of(storages=outside, pickle=outside)) is None  # only the last part of a name matters
    assert sorted(os.listdir(tmp_path)) == ["a.pth"]


def test_a_storage_of_another_size_than_its_numbers(tmp_path):
    for count in (0, 5, 7, 2**61):
        assert "expected" in message_of(tmp_path / "a.pth", zipped(dictionary(a=tensor((0,), of=storage(count)))))
    np.testing.assert_array_equal(np.frombuffer(NUMBERS, "<f4"), range(6))
