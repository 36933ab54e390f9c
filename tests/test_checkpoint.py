import dataclasses
import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sudden_death import each_moment

from efficientdet.checkpoints import checkpoint
from efficientdet.checkpoints.checkpoint import (
    Description,
    checkpoint_prefix,
    read_arrays,
    read_bundle,
    read_description,
    remove_unused_data_files,
    write_arrays,
)
from efficientdet.checkpoints.description import description_of
from program_support.errors import InputError

DESCRIPTION = Description(
    model_name="efficientdet-d0",
    hparams={"image_size": 64, "aspect_ratios": [[1.0, 1.0]]},
    categories=[{"id": 7, "name": "é"}],
    weights="raw and averaged",
    global_step=3,
)
ARRAYS = {
    "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a/kernel/Momentum": np.full(2, -0.0, np.float32),
    "global_step": np.int64(2**40),
    "nan": np.array([np.nan, np.inf], np.float32),
}


def write(prefix, arrays=None):
    write_arrays(str(prefix), ARRAYS if arrays is None else arrays, DESCRIPTION)


def test_what_is_written_is_read(tmp_path):
    write(tmp_path / "new" / "ckpt-3")
    found = read_arrays(str(tmp_path / "new" / "ckpt-3"))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == np.asarray(array).dtype
        assert np.asarray(found[name]).tobytes() == np.asarray(array).tobytes()  # bit for bit
    assert read_description(str(tmp_path / "new" / "ckpt-3")) == DESCRIPTION


def test_files_have_the_reference_names_and_nothing_is_left_over(tmp_path):
    write(tmp_path / "emackpt-10")
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint",
        "emackpt-10.data-00000-of-00001",
        "emackpt-10.index",
        "emackpt-10.json",
    ]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "emackpt-10")


WHOLE = {"value": np.float32([1, 1]), "global_step": np.int64(3)}
OTHER = {"value": np.float32([2, 2, 2]), "global_step": np.int64(4)}
THERE_BEFORE = {}  # kind -> what is done to a checkpoint of today to make it one of that kind


def before(kind):
    def register(change):
        THERE_BEFORE[kind] = change
        return change

    return register


@before("of today")
def _(prefix):
    pass


@before("of another tool")
def _(prefix):
    Path(f"{prefix}.json").unlink()


@before("left by a kill")
def _(prefix):
    description = dataclasses.replace(DESCRIPTION, weights="whole")
    for _ in each_moment(lambda number: write_arrays(str(prefix), WHOLE, description)):
        if Path(f"{prefix}.index").read_bytes()[4] == 2:
            return
    raise AssertionError("was never of two data files")


@pytest.fixture
def quick_disk(monkeypatch):
    """What is killed here is no computer."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize("kind", THERE_BEFORE)
def test_killed_at_any_moment_over_another_one_leaves_either_whole(tmp_path, kind, quick_disk):
    old, new = (dataclasses.replace(DESCRIPTION, weights=weights) for weights in ("whole", "other"))
    (tmp_path / "there").mkdir()
    write_arrays(str(tmp_path / "there" / "emackpt-best"), WHOLE, old)
    THERE_BEFORE[kind](tmp_path / "there" / "emackpt-best")
    seen = []

    def write_over(number):
        write_arrays(str(tmp_path / str(number) / "emackpt-best"), OTHER, new)

    def prepared():
        for number in range(1, 1000):
            shutil.copytree(tmp_path / "there", tmp_path / str(number))
            yield number

    prepare = prepared()
    next(prepare)
    for number, _calls in each_moment(write_over):
        prefix = tmp_path / str(number) / "emackpt-best"
        assert checkpoint_prefix(prefix.parent) == tf.train.latest_checkpoint(str(prefix.parent)) == str(prefix)
        arrays, description = read_bundle(prefix)
        reader = tf.train.load_checkpoint(str(prefix))  # what TensorFlow's own tools see
        theirs = {name: reader.get_tensor(name) for name in WHOLE}
        seen.append(theirs["value"][0])
        for found in (arrays, theirs):
            wanted = WHOLE if seen[-1] == 1 else OTHER
            assert {name: found[name].tolist() for name in found} == {name: wanted[name].tolist() for name in wanted}
        expected = new if seen[-1] == 2 else None if kind == "of another tool" else old
        assert description == expected
        write_arrays(str(prefix), OTHER, new)  # and nothing is left of the death
        assert sorted(os.listdir(prefix.parent)) == [
            "checkpoint",
            "emackpt-best.data-00000-of-00001",
            "emackpt-best.index",
            "emackpt-best.json",
        ]
        assert read_description(prefix) == new
        assert "replaces" not in json.loads(Path(f"{prefix}.json").read_text())
        next(prepare)
    assert seen == sorted(seen)  # old, and from some moment on new
    assert set(seen) == {1, 2}
    assert len(seen) > 10


def test_the_folder_of_a_quick_start_stands_for_its_model(tmp_path):
    written = tmp_path / "rac" / "model" / "ckpt"
    write_arrays(str(written), WHOLE, DESCRIPTION)
    write_arrays(str(tmp_path / "rac" / "model_smaller_input" / "ckpt"), WHOLE, DESCRIPTION)
    assert checkpoint_prefix(tmp_path / "rac") == str(written)
    write_arrays(str(tmp_path / "rac" / "ckpt-final"), WHOLE, DESCRIPTION)
    assert checkpoint_prefix(tmp_path / "rac") == str(tmp_path / "rac" / "ckpt-final")


def test_killed_at_any_moment_of_a_first_writing_leaves_none_or_it(tmp_path, quick_disk):
    for number, _ in each_moment(lambda number: write_arrays(str(tmp_path / str(number) / "ckpt"), WHOLE, DESCRIPTION)):
        folder = tmp_path / str(number)
        if (folder / "ckpt.index").exists():
            assert read_bundle(folder / "ckpt") == (WHOLE | {"value": pytest.approx(WHOLE["value"])}, DESCRIPTION)
        elif folder.exists():
            with pytest.raises(InputError, match="no checkpoint in this folder"):
                checkpoint_prefix(folder)


def test_read_while_another_process_replaces_it(tmp_path, monkeypatch):
    """Arrays of the one and the description of the other are read again."""
    old, new = (dataclasses.replace(DESCRIPTION, weights=weights) for weights in ("whole", "other"))
    write_arrays(str(tmp_path / "ckpt"), WHOLE, old)
    read, calls = checkpoint.read_arrays, []

    def replaced_after_reading(prefix):
        arrays = read(prefix)
        if not calls:
            calls.append(prefix)
            write_arrays(str(prefix), OTHER, new)
        return arrays

    monkeypatch.setattr(checkpoint, "read_arrays", replaced_after_reading)
    arrays, description = read_bundle(tmp_path / "ckpt")
    assert (arrays["global_step"], description) == (4, new)


def full(folder):
    (folder / "filler").write_bytes(bytes(200_000 - 4096 * 8))


def read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


@pytest.mark.parametrize(
    ("hinder", "message"), [(full, "no space left on device"), (read_only, "Read-only file system")]
)
def test_full_or_read_only_disk(tmp_path, hinder, message):
    if os.geteuid() != 0:
        pytest.skip("needs a file system of its own: root")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200000", "tmpfs", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        write(tmp_path / "ckpt-final")
        hinder(tmp_path)
        there = sorted(os.listdir(tmp_path))
        with pytest.raises(
            InputError, match=f"ckpt-final: cannot be written .*{message}.*checkpoints are intact"
        ) as caught:
            write(tmp_path / "ckpt-final", {"b": np.zeros(20_000, np.float32)})
        assert "\n" not in str(caught.value)
        assert read_bundle(tmp_path / "ckpt-final")[1] == DESCRIPTION
        assert read_arrays(tmp_path / "ckpt-final").keys() == ARRAYS.keys()
        assert sorted(os.listdir(tmp_path)) == there
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def flipped(content):
    return bytes([*content[:100], content[100] ^ 1, *content[101:]])


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        (".index", lambda content: content[:-7]),
        (".index", None),
        (".data-00000-of-00001", lambda content: content[:-7]),
        (".data-00000-of-00001", lambda content: b""),
        (".data-00000-of-00001", flipped),
        (".data-00000-of-00001", None),
    ],
)
def test_torn_files_are_told(tmp_path, suffix, change):
    prefix = tmp_path / "ckpt"
    write(prefix, {"a": np.arange(1000, dtype=np.float32)})
    file = Path(f"{prefix}{suffix}")
    content = file.read_bytes()
    file.unlink()
    if change:
        file.write_bytes(change(content))
    with pytest.raises(InputError, match=f"{prefix}: cannot be read as a checkpoint") as caught:
        read_arrays(str(prefix))
    assert "\n" not in str(caught.value)


def test_hyperparameters_of_earlier_trainings_are_left_out():
    hparams = {"image_size": 64, "lr_decay_method": "plateau", "lr_patience": 3, "aspect_ratios": [[1.0, 1.0]]}
    content = {**vars(DESCRIPTION), "hparams": hparams, "continues": "ckpt-2"}
    assert description_of(content) == DESCRIPTION


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"model_name": "x"}'])
def test_broken_description(tmp_path, text):
    (tmp_path / "ckpt.json").write_text(text)
    with pytest.raises(InputError, match=r"ckpt.json: is not a valid description of a checkpoint"):
        read_description(str(tmp_path / "ckpt"))


def test_prefix_of_a_prefix_or_of_one_of_its_files(tmp_path):
    write(tmp_path / "ckpt")
    for suffix in ("", ".index", ".data-00000-of-00001"):
        assert checkpoint_prefix(f"{tmp_path}/ckpt{suffix}") == f"{tmp_path}/ckpt"


def test_leading_zeros_of_a_number_do_not_matter(tmp_path):
    """NVIDIA's scripts and pages name epoch 3 emackpt-03 and emackpt-3."""
    for name in ("emackpt-3.index", "emackpt-010.index", "ckpt-3.index", "emackpt-03x.index"):
        (tmp_path / name).touch()
    assert checkpoint_prefix(tmp_path / "emackpt-03") == f"{tmp_path}/emackpt-3"
    assert checkpoint_prefix(f"{tmp_path}/emackpt-10") == f"{tmp_path}/emackpt-010"
    for name in ("emackpt-30", "emackpt-", "3"):
        with pytest.raises(InputError, match="there is no checkpoint of that name"):
            checkpoint_prefix(tmp_path / name)
    (tmp_path / "emackpt-003.index").touch()
    with pytest.raises(InputError, match="there is no checkpoint of that name"):  # there are two
        checkpoint_prefix(tmp_path / "emackpt-03")


def test_folder_stands_for_what_its_state_file_names(tmp_path):
    write(tmp_path / "ckpt")
    write(tmp_path / "ckpt-final")
    os.utime(tmp_path / "ckpt.index", (4e9, 4e9))
    assert checkpoint_prefix(tmp_path) == str(tmp_path / "ckpt-final")


@pytest.mark.parametrize("state", [None, "", 'model_checkpoint_path: "gone"\n'])
def test_folder_without_a_state_file_that_helps_stands_for_the_last_written(tmp_path, state):
    for number, name in enumerate(("emackpt-10", "emackpt-9")):
        write(tmp_path / name)
        os.utime(tmp_path / f"{name}.index", (number, number))
    (tmp_path / "checkpoint").unlink()
    if state is not None:
        (tmp_path / "checkpoint").write_text(state)
    assert checkpoint_prefix(tmp_path) == str(tmp_path / "emackpt-9")


def test_nothing_there(tmp_path):
    with pytest.raises(
        InputError, match=r"nosuch: there is no checkpoint of that name \(no .*nosuch.index\) and no folder"
    ):
        checkpoint_prefix(tmp_path / "nosuch")
    with pytest.raises(InputError, match="no checkpoint in this folder; it holds nothing"):
        checkpoint_prefix(tmp_path)
    (tmp_path / "README").touch()
    with pytest.raises(InputError, match="it holds README"):
        checkpoint_prefix(tmp_path)


def test_what_may_not_be_read_is_one_line(tmp_path, monkeypatch):
    """As another user's folder and file; the tests run as root, who may read everything."""

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "weights.bin").touch()
    monkeypatch.setattr(Path, "iterdir", refused)
    monkeypatch.setattr(os, "open", refused)
    for path in (tmp_path, tmp_path / "weights.bin"):
        with pytest.raises(InputError, match=rf"^{path}: cannot be read \(Permission denied\)$"):
            checkpoint_prefix(path)


@pytest.mark.parametrize("count", [1, 2, 127, 300])
def test_data_files_that_are_read_stay(tmp_path, count):
    """Of another tool's bundle with any number of them."""
    head = (
        b"\0\0\x07\x08" + (bytes([count]) if count < 128 else bytes([count & 127 | 128, count >> 7])) + b"\x1a\2\x08\1"
    )
    (tmp_path / "a.index").write_bytes(head)
    for total in (1, count, 3):
        (tmp_path / f"a.data-00000-of-{total:05d}").touch()
    remove_unused_data_files(tmp_path / "a")
    left = [file.name for file in tmp_path.glob("a.data-*")]
    assert f"a.data-00000-of-{count:05d}" in left
    assert len(left) == 1 or count > 127


def test_three_data_files_of_another_tool_are_replaced(tmp_path):
    for number in range(3):
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / str(number)),
            tensor_names=[str(number)],
            shape_and_slices=[""],
            tensors=[tf.constant(number)],
        )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(tmp_path / str(number)) for number in range(3)], destination_prefix=str(tmp_path / "a")
    )
    assert len(list(tmp_path.glob("a.data-*-of-00003"))) == 3
    write(tmp_path / "a")
    assert read_arrays(tmp_path / "a").keys() == ARRAYS.keys()
    assert sorted(os.listdir(tmp_path)) == ["a.data-00000-of-00001", "a.index", "a.json", "checkpoint"]
