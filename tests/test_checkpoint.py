import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from efficientdet.checkpoint import Description, checkpoint_prefix, read_arrays, read_description, write_arrays
from object_detection.errors import InputError

DESCRIPTION = Description(model_name="efficientdet-d0", hparams={"image_size": 64, "aspect_ratios": [[1.0, 1.0]]},
                          categories=[{"id": 7, "name": "é"}], weights="raw and averaged", global_step=3)
ARRAYS = {"a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "a/kernel/Momentum": np.full(2, -0.0, np.float32),
          "global_step": np.int64(2**40), "nan": np.array([np.nan, np.inf], np.float32)}


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
        "checkpoint", "emackpt-10.data-00000-of-00001", "emackpt-10.index", "emackpt-10.json"]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "emackpt-10")


def test_one_that_is_there_is_replaced(tmp_path):
    write(tmp_path / "ckpt")
    write(tmp_path / "ckpt", {"b": np.float32(1)})
    assert read_arrays(str(tmp_path / "ckpt")) == {"b": 1}


def test_a_write_that_fails_leaves_the_old_one_whole(tmp_path, monkeypatch):
    write(tmp_path / "ckpt")
    saved = tf.raw_ops.SaveV2

    def full_disk(**arguments):
        saved(**arguments)
        raise OSError("no space left on device")

    monkeypatch.setattr(tf.raw_ops, "SaveV2", full_disk)
    with pytest.raises(InputError, match=r"no space left on device.*the checkpoints before it are whole"):
        write(tmp_path / "ckpt", {"b": np.float32(1)})
    assert read_arrays(str(tmp_path / "ckpt")).keys() == ARRAYS.keys()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("damage", ["cut index", "cut data", "empty data", "no data", "flipped bit", "no index"])
def test_torn_files_are_told(tmp_path, damage):
    prefix = tmp_path / "ckpt"
    write(prefix, {"a": np.arange(1000, dtype=np.float32)})
    index, data = tmp_path / "ckpt.index", tmp_path / "ckpt.data-00000-of-00001"
    if damage == "cut index":
        index.write_bytes(index.read_bytes()[:-7])
    elif damage == "cut data":
        data.write_bytes(data.read_bytes()[:-7])
    elif damage == "empty data":
        data.write_bytes(b"")
    elif damage == "no data":
        data.unlink()
    elif damage == "no index":
        index.unlink()
    else:
        content = bytearray(data.read_bytes())
        content[100] ^= 1
        data.write_bytes(content)
    with pytest.raises(InputError, match=f"{prefix}: cannot be read as a checkpoint") as caught:
        read_arrays(str(prefix))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"model_name": "x"}'])
def test_broken_description(tmp_path, text):
    (tmp_path / "ckpt.json").write_text(text)
    with pytest.raises(InputError, match=r"ckpt.json: is no description of a checkpoint"):
        read_description(str(tmp_path / "ckpt"))


def test_no_description_is_a_checkpoint_of_another_tool(tmp_path):
    assert read_description(str(tmp_path / "ckpt")) is None


def test_prefix_of_a_prefix_or_of_one_of_its_files(tmp_path):
    write(tmp_path / "ckpt")
    for suffix in ("", ".index", ".data-00000-of-00001"):
        assert checkpoint_prefix(f"{tmp_path}/ckpt{suffix}") == f"{tmp_path}/ckpt"


def test_prefix_that_looks_like_a_folder_wins(tmp_path):
    write(tmp_path / "ckpt")
    (tmp_path / "ckpt").mkdir()
    assert checkpoint_prefix(tmp_path / "ckpt") == str(tmp_path / "ckpt")


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


def test_folder_that_was_moved(tmp_path):
    write(tmp_path / "old" / "ckpt")
    # other tools write absolute paths
    (tmp_path / "old" / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/old/ckpt"\n')
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert checkpoint_prefix(tmp_path / "new") == str(tmp_path / "new" / "ckpt")


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match=r"nosuch: there is no checkpoint of that name \(no .*nosuch.index\) and no folder"):
        checkpoint_prefix(tmp_path / "nosuch")
    with pytest.raises(InputError, match="no checkpoint in this folder; it holds nothing"):
        checkpoint_prefix(tmp_path)
    (tmp_path / "README").touch()
    with pytest.raises(InputError, match="it holds README"):
        checkpoint_prefix(tmp_path)
