"""Files of torch read without torch. torch 2.13 wrote the fixtures (testdata/README.md); wrong files and attacks are
built byte by byte: each ends in one line, runs nothing and takes little memory."""

import argparse
import collections
import datetime
import io
import os
import pathlib
import pickle
import random
import struct
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from oracles import TESTDATA
from torch_bytes import NUMBERS, call, dictionary, integer, named, pickled, storage, tensor, text, tuple_of, zipped

from efficientdet.weights.readers import reader_of
from program_support.errors import InputError

FILES = ("torch_zip.pth", "torch_pickles.pth", "torch_tar.pth", "torch_tar_parameters.pth", "torch.safetensors")
IN_TAR = {
    "conv1.weight",
    "conv1.transposed",
    "bn1.running_var",
    "double",
    "bytes",
    "shared.a",
    "shared.b",
}  # types of 2017
SIX = np.arange(6, dtype=np.float32)
HUGE = b"\x8b" + struct.pack("<i", 3 * 2**20) + b"\x01" * (3 * 2**20)  # an integer of millions of digits
ORDERED = named("collections", "OrderedDict")
REBUILD = named("torch._utils", "_rebuild_tensor_v2")
LAUGHS = text("ha") + b"q\x010" + b"h\1h\1\x86q\x010" * 60 + b"h\1"  # a tuple of two tuples of two ..: 2^60 texts
DEEP = b")" + b"\x85" * 150_000


def read(path):
    return reader_of(path).read(path)


def message_of(path, content):
    """The message of reading `content`, which must be one line and take little memory; None where it can be read."""
    path.write_bytes(content)
    found = None
    tracemalloc.start()
    try:
        read(path)
    except InputError as error:
        found = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 300e6
    assert found is None or (found.startswith(f"{path}: ") and len(found) < 2000 and found.isprintable())
    return found


@pytest.fixture
def file(tmp_path):
    """Writes bytes and returns where."""

    def write(content):
        path = tmp_path / "weights.pth"
        path.write_bytes(content)
        return path

    return write


@pytest.mark.parametrize("name", FILES)
def test_arrays_are_those_that_torch_wrote(name):
    found, wanted = read(TESTDATA / name), np.load(TESTDATA / "torch_arrays.npz")
    assert found.keys() == (IN_TAR if "tar" in name else {*wanted})
    for key, array in found.items():
        assert (array.dtype, array.shape) == (wanted[key].dtype, wanted[key].shape), key
        np.testing.assert_array_equal(array, wanted[key], err_msg=key)


def test_tensors_of_one_storage_share_its_memory():
    found = read(TESTDATA / "torch_zip.pth")
    assert np.shares_memory(found["shared.a"], found["shared.b"])
    assert not np.shares_memory(found["conv1.weight"], found["conv1.transposed"])


def test_weights_inside_a_training_and_of_data_parallel():
    """torch.save({"model": DataParallel(net).state_dict(), "optimizer": .., "epoch": 3})."""
    found = read(TESTDATA / "torch_training.pth")
    assert {name: array.shape for name, array in found.items()} == {
        "conv.weight": (3, 2, 3, 3),
        "conv.bias": (3,),
        "bn.weight": (3,),
        "bn.bias": (3,),
        "bn.running_mean": (3,),
        "bn.running_var": (3,),
        "bn.num_batches_tracked": (),
    }
    np.testing.assert_array_equal(found["bn.running_var"], np.ones(3, np.float32))


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "model_state_dict"])
def test_one_level_around_the_weights_is_taken_off(file, wrapper):
    assert [*read(file(zipped(dictionary(epoch=integer(3), **{wrapper: dictionary(a=tensor())}))))] == ["a"]
    with pytest.raises(InputError, match="its entry 'model' is a Dictionary"):
        read(file(zipped(dictionary(model=dictionary(model=dictionary(a=tensor()))))))


@pytest.mark.parametrize("around", ["module.", "_orig_mod.", "model.", "model._orig_mod.", "module.model."])
def test_names_of_modules_around_the_network_are_removed(file, around):
    """torch.compile, Lightning, effdet's DetBenchTrain, whose anchors are beside the network."""
    weights = {f"{around}a.weight": tensor(), f"{around}model.b": tensor(), "anchors.boxes": tensor()}
    assert [*read(file(zipped(dictionary(state_dict=dictionary(**weights)))))] == ["a.weight", "model.b"]


def test_a_model_of_ultralytics_is_refused_with_the_reason(file):
    """torch.save({"epoch": -1, "model": DetectionModel(..)})."""
    model = call(named("ultralytics.nn.tasks", "DetectionModel"))
    reason = (
        r"its entry 'model' refers to ultralytics\.nn\.tasks\.DetectionModel; the networks of ultralytics are none of"
    )
    with pytest.raises(InputError, match=reason):
        read(file(zipped(dictionary(epoch=integer(-1), ema=b"N", model=model))))


class Config(dict):
    """Stands for a class of a training program."""


def objects_of_a_training(protocol):
    """Return what training programs save beside the weights."""
    settings = argparse.Namespace(lr=0.1, output=pathlib.PurePosixPath("runs/1"), names={"a", "b"})
    config, counts = Config(a=1), collections.defaultdict(list, {3: [1]})
    config.parent = settings
    values = (settings, config, counts, np.float64(0.5), datetime.date(2026, 1, 2), collections.Counter("aab"))
    return pickle.dumps(values, protocol).removesuffix(b".")


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_objects_beside_the_weights_are_not_read(file, protocol):
    """torch.save({"model": net.state_dict(), "args": argparse.Namespace(...)}), as of many training programs."""
    others = objects_of_a_training(protocol)
    np.testing.assert_array_equal(read(file(zipped(dictionary(args=others, model=dictionary(a=tensor())))))["a"], SIX)
    with pytest.raises(
        InputError, match=r"its entry 'args' refers to argparse\.Namespace; expected only named tensors"
    ):
        read(file(zipped(dictionary(args=call(named("argparse", "Namespace")), a=tensor()))))
    with pytest.raises(InputError, match=r"weights\.pth: refers to torchvision\.models\.resnet\.ResNet; expected only"):
        read(file(zipped(named("torchvision.models.resnet", "ResNet") + b")\x81" + dictionary(a=tensor()) + b"b")))


def test_averaged_weights_are_preferred(file):
    raw, averaged = dictionary(a=tensor()), dictionary(a=tensor((3,)))
    for wrapper in ("state_dict_ema", "model_ema"):
        assert read(file(zipped(dictionary(state_dict=raw, model=raw, **{wrapper: averaged}))))["a"].shape == (3,)
    counted = dictionary(n_averaged=tensor((), ()), **{"module.a": tensor((2,))})  # torch's AveragedModel
    found = read(file(zipped(dictionary(model_ema=counted, model=raw))))
    assert {name: array.shape for name, array in found.items()} == {"a": (2,)}


def test_byte_order_of_the_writer(file):
    numbers = struct.pack(">6f", *range(6))
    found = read(file(zipped(dictionary(a=tensor()), numbers=numbers, members={"archive/byteorder": b"big"})))
    np.testing.assert_array_equal(found["a"], SIX)
    assert found["a"].dtype.isnative
    with pytest.raises(InputError, match="byte order b'middle'"):
        read(file(zipped(dictionary(a=tensor()), members={"archive/byteorder": b"middle"})))


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (call(named("os", "system"), text("touch touched")), "os.system"),
        (call(named("builtins", "eval"), text("open('touched', 'w')")), "builtins.eval"),
        (text("os") + text("system") + b"\x93" + tuple_of(text("touch touched")) + b"R", "os.system"),
        (b"(" + text("touch touched") + b"ios\nsystem\n", "INST"),
        (b"(" + named("os", "system") + text("touch touched") + b"o", "os.system"),
        (named("torch.storage", "_load_from_bytes"), "torch.storage._load_from_bytes"),
        (named("torch", "ComplexFloatStorage"), "torch.ComplexFloatStorage"),
        (b"\x8f", "EMPTY_SET"),
    ],
)
def test_all_but_tensors_is_refused_by_name_and_nothing_is_done(file, tmp_path, monkeypatch, value, asked):
    monkeypatch.chdir(tmp_path)
    long = pickled(integer(0x1950A86A20F9469CFC6C)) + pickled(integer(1001)) + pickled(b"}")
    for content in (zipped(value), zipped(dictionary(a=tensor(), b=value)), long + pickled(value)):
        with pytest.raises(InputError, match=asked) as caught:
            read(file(content))
        assert str(caught.value).startswith(f"{tmp_path}/weights.pth: ")
        assert "expected only named tensors of numbers" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"}", "holds nothing"),
        (tensor(), "holds a Tensor"),
        (b"}" + integer(1) + tensor() + b"s", "its entry 1 is a Tensor"),
        (dictionary(a=tensor() + b"}b"), "gives a tensor attributes"),
        (dictionary(a=call(integer(1))), "'int' object is not callable"),
        (dictionary(a=call(named("torch", "FloatTensor"))), "a tensor without numbers"),
        (dictionary(a=tensor(metadata=dictionary(neg=b"\x88"))), "metadata {'neg': True}"),
        (dictionary(a=tensor(of=text("storage"))), "a tensor of a str"),
        (dictionary(a=call(named("torch.nn.parameter", "Parameter"), integer(1))), "a parameter that is a int"),
        (dictionary(a=text("0") + b"Q"), "persistent id '0'"),
        (dictionary(a=tensor(), b=tensor((3,), of=storage(3))), "two storages with the key '0'"),
        (dictionary(a=tensor(of=storage(-1))), "expected its type, a text key and a count"),
        (dictionary(a=tensor(of=storage(2**60))), "has 24 bytes; expected 4611686018427387904 bytes"),
        (dictionary(a=tensor(of=storage(key="../0"))), r"'data/../0' is missing"),
        (dictionary(a=tensor((7,))), "expected a view of its storage of 6 numbers"),
        (dictionary(a=tensor((2**40,), (0,))), "expected at most the"),
        (b"}r\xff\xff\xff\x7f", ""),  # a memo of 2^31 places
        (b"\x8b" + struct.pack("<i", 2**31 - 1) + b"\1", ""),  # a number of 2 GB
        (b"\x95" + struct.pack("<Q", 2**60), ""),  # a frame
        (b"N" + b"0N" * 500_000, "has more than 1000000 operations"),
        (call(named("builtins", "getattr"), named("os", "path"), text("os")), "refers to builtins.getattr"),
        (named("collections", "OrderedDict.__init__.__globals__"), "refers to collections.OrderedDict.__init__"),
        (
            text("torch._utils") + text("_rebuild_tensor.__globals__") + b"\x93",
            "torch._utils._rebuild_tensor.__globals__",
        ),
        (REBUILD + dictionary(__defaults__=tuple_of(integer(1))) + b"b", "gives a state to a function"),
        (tuple_of(text("storage"), named("torch", "FloatStorage"), text("0"), text("cpu"), HUGE) + b"Q", "ValueError"),
        (DEEP, "holds a tuple"),
        (call(ORDERED, b"](" + tuple_of(LAUGHS, b"N") + b"e"), "a key that is a tuple"),
        (
            dictionary(a=call(REBUILD, storage(), integer(0), tuple_of(HUGE), tuple_of(integer(1)))),
            "from 0 to 281474976710656",
        ),
        (dictionary(a=call(REBUILD, *[b"N"] * 100_000)), "positional arguments"),
        (b"I" + b"9" * 100_000 + b"\n", "ValueError"),
        (b"\x80\x63", "unsupported pickle protocol"),
    ],
)
def test_wrong_content_is_told_in_one_line(tmp_path, value, message):
    assert message in message_of(tmp_path / "a.pth", zipped(value))


ONE = dictionary(a=tensor())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped(ONE, compression=zipfile.ZIP_DEFLATED, numbers=bytes(10**6)), "compressed or encrypted"),
        (zipped(ONE, members={"archive/constants.pkl": b""}), "is a TorchScript program"),
        (zipped(ONE, members={"other/data.pkl": b""}), "with 2 data.pkl"),
        (zipped(ONE, members={"archive/data.pkl": None}), "with 0 data.pkl"),
        (zipped(ONE, members={"archive/data/0": None}), "'data/0' is missing; expected 24 bytes"),
        (zipped(ONE, numbers=bytes(23)), "has 23 bytes; expected 24 bytes"),
        (zipped(ONE).replace(NUMBERS, bytes(24)), "Bad CRC-32"),
        (zipped(b"]" * (8 * 2**20 + 1)), "pickle has more than 8388608 bytes"),
        (zipped(ONE)[:-5], "damaged zip"),
        (b"PK\3\4", "damaged zip"),
        (b"", "begins with b''"),
        (b"GIF89a" + bytes(500), "begins with b'GIF89a"),
    ],
)
def test_wrong_zips_are_told_in_one_line(tmp_path, content, message):
    assert message in message_of(tmp_path / "a.pth", content)


@pytest.mark.parametrize(("place", "value"), [(8, 1), (10, zipfile.ZIP_DEFLATED), (10, zipfile.ZIP_LZMA)])
def test_members_that_only_say_that_they_are_encrypted_or_packed(file, place, value):
    """In the directory at the end; the sizes are those of plain members."""
    content = bytearray(zipped(ONE))
    content[content.index(b"PK\1\2") + place] = value
    with pytest.raises(InputError, match="compressed or encrypted"):
        read(file(content))


def long_layout(*, version=1001, keys=("0",), count=6, of=None):
    parts = [integer(0x1950A86A20F9469CFC6C), integer(version), b"}", dictionary(a=tensor(of=of))]
    listed = b"](" + b"".join(map(text, keys)) + b"e"
    return b"".join(map(pickled, [*parts, listed])) + struct.pack("<q", count) + NUMBERS


def test_pickles_one_after_the_other(file):
    np.testing.assert_array_equal(read(file(long_layout()))["a"], SIX)
    view = (
        tuple_of(
            text("storage"),
            named("torch", "FloatStorage"),
            text("0"),
            text("cpu"),
            integer(6),
            tuple_of(text("1"), integer(0), integer(6)),
        )
        + b"Q"
    )
    for content, message in (
        (long_layout(version=1002), "has version 1002"),
        (long_layout(keys=()), "names the storages"),
        (long_layout(keys=("0", "0")), "names the storages"),
        (long_layout(keys=("1",)), "names the storages"),
        (long_layout(count=5), "a storage of 5 numbers"),
        (long_layout(count=-1), "a storage of -1 numbers"),
        (long_layout(count=2**62), "a storage of 4611686018427387904 numbers"),
        (long_layout()[:-1], "within"),
        (long_layout(of=view), "has the persistent id"),
    ):
        with pytest.raises(InputError, match=message):
            read(file(content))


def test_numbers_before_parameters_as_torch_0_1_wrote_them(file):
    """A tensor that is made first and told later what it is, and a parameter around it."""
    built = (
        named("torch", "FloatTensor")
        + b")R"
        + tuple_of(storage(), integer(2), tuple_of(integer(2), integer(2)), tuple_of(integer(2), integer(1)))
        + b"b"
    )
    parameter = call(named("torch.nn.parameter", "Parameter"), built) + tuple_of(b"\x88", b"\x89", b"N") + b"b"
    found = read(file(zipped(dictionary(a=built, b=parameter))))
    np.testing.assert_array_equal(found["a"], [[2, 3], [4, 5]])
    np.testing.assert_array_equal(found["b"], [[2, 3], [4, 5]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.replace(b"storages\0", b"storagez\0", 1), "damaged tar: invalid header at offset"),
        (lambda content: content[: content.index(b"tensors\0")], "tar without tensors, pickle"),
        (lambda content: content.replace(b"FloatStorage", b"FloatStorag3"), "torch.FloatStorag3; expected only"),
        (lambda content: content[:2000], "tar without tensors, pickle|cut short"),
    ],
)
def test_wrong_tars_are_told_in_one_line(file, change, message):
    with pytest.raises(InputError, match=message):
        read(file(change((TESTDATA / "torch_tar.pth").read_bytes())))


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_read_or_refused(tmp_path, name):
    """Whatever is flipped, cut, put in twice or left out: arrays or one line, nothing else."""
    content, rng = (TESTDATA / name).read_bytes(), random.Random(1)
    path = tmp_path / name
    refused = []
    for number in range(400):
        damaged = bytearray(content)
        place = rng.randrange(len(content))
        if number % 4 == 0:
            del damaged[place:]
        elif number % 4 == 1:
            damaged[place] = rng.choice((0, 255, damaged[place] ^ 1 << rng.randrange(8)))
        else:
            for _ in range(rng.randrange(1, 6)):
                start, end = sorted(rng.choices(range(len(damaged)), k=2))
                damaged[place % len(damaged) : place % len(damaged) + 4 * (number % 4 == 3)] = damaged[
                    start : min(end, start + 40)
                ]
        path.write_bytes(damaged)
        try:
            read(path)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert all(message.startswith(str(path)) and "\n" not in message for message in refused)


class Runs:
    """Pickled by Python itself as a call of os.system."""

    def __reduce__(self):
        return os.system, ("touch touched",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_python_that_calls_the_shell_is_refused(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    value = pickle.dumps({"a": Runs()}, protocol).removesuffix(b".")
    assert f"refers to {os.system.__module__}.system" in message_of(tmp_path / "a.pth", zipped(value))
    assert not (tmp_path / "touched").exists()


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
