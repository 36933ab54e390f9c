"""Which of a training's checkpoints is the newest, which stay, and which can be read."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from stored_checkpoints import steps_in
from sudden_death import each_moment

from efficientdet.checkpoints import checkpoint
from efficientdet.checkpoints.checkpoint import (
    Description,
    checkpoint_prefix,
    read_bundle,
    read_description,
    remove_bundle,
    write_arrays,
)
from efficientdet.checkpoints.store import CheckpointStore, read_checkpoint
from program_support.errors import InputError

IMAGES_A_STEP = 8


def arrays_of(step):
    return {"value": np.float32([step]), "global_step": np.int64(step)}


def describe(step, *, images=None):
    return Description(
        model_name="efficientdet-d0",
        hparams={},
        categories=[{"id": 7, "name": "cow"}],
        weights="raw and averaged",
        global_step=step,
        run={"images_seen": step * IMAGES_A_STEP if images is None else images, "global_batch_size": IMAGES_A_STEP},
    )


def save(store, *steps, images=None):
    for step in steps:
        store.save(arrays_of(step), describe(step, images=images))


def names(folder):
    return [prefix.name for prefix in CheckpointStore(folder).prefixes()]


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Saved after steps 200, 300, 400."""
    folder = tmp_path_factory.mktemp("template")
    save(CheckpointStore(folder), 200, 300, 400)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    return Path(shutil.copytree(template, tmp_path / "model_dir"))


def newest_everywhere(folder, name):
    """The program, a new process, TensorFlow and `ckpt` agree."""
    assert Path(CheckpointStore(folder).newest(log=print).prefix).name == name
    assert Path(checkpoint_prefix(folder)).name == name
    assert Path(tf.train.latest_checkpoint(str(folder))).name == name
    arrays, description = read_bundle(folder / "ckpt")
    assert arrays["global_step"] == description.global_step == int(name.split("-")[1])
    assert description.save_number == read_description(folder / name).save_number


# which is the newest, and which stay


def test_the_last_three_stay(tmp_path):
    save(CheckpointStore(tmp_path), 1, 2, 3, 4)
    assert names(tmp_path) == ["ckpt-4", "ckpt-3", "ckpt-2"]
    newest_everywhere(tmp_path, "ckpt-4")


def test_steps_that_became_fewer_are_still_later(folder):
    """A batch four times as large: 400 steps are 100, and 110, 120, 130 are later."""
    store = CheckpointStore(folder)
    for step in (110, 120, 130):
        save(store, step, images=4 * step * IMAGES_A_STEP)
        newest_everywhere(folder, f"ckpt-{step}")
    assert steps_in(folder) == [110, 120, 130]


def test_the_same_step_again_takes_the_place_of_the_other(folder):
    store = CheckpointStore(folder)
    store.save({**arrays_of(300), "value": np.float32([-1])}, describe(300))
    newest_everywhere(folder, "ckpt-300")
    assert read_bundle(folder / "ckpt-300")[0]["value"] == [-1]
    save(store, 300)  # a third time, and over itself
    assert names(folder) == ["ckpt-300", "ckpt-400", "ckpt-200"]
    assert not list(folder.glob("*-of-00002"))


def test_copies_have_the_same_order(folder, tmp_path):
    save(CheckpointStore(folder), 110)
    copy = tmp_path / "copy"
    copy.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copyfile(file, copy / file.name)
        os.utime(copy / file.name, (1000 - number, 1000 - number))
    assert names(copy) == names(folder)
    newest_everywhere(copy, "ckpt-110")


def test_of_third_party_checkpoints_the_state_file_then_time_decide(folder):
    for number, name in enumerate(("ckpt-400", "ckpt-300", "ckpt-200")):
        (folder / f"{name}.json").unlink()
        os.utime(folder / f"{name}.index", (number, number))
    (folder / "ckpt.index").unlink()
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-300"\n')
    assert names(folder) == ["ckpt-300", "ckpt-200", "ckpt-400"]
    assert checkpoint_prefix(folder) == str(folder / "ckpt-300")
    (folder / "checkpoint").write_bytes(b"\xff\x00 no text")
    assert names(folder) == ["ckpt-200", "ckpt-300", "ckpt-400"]


def test_the_end_is_the_newest_and_the_best_never(folder):
    write_arrays(str(folder / "ckpt-final"), arrays_of(400), describe(400))
    write_arrays(str(folder / "emackpt-best"), arrays_of(400), describe(400), newest=False)
    assert checkpoint_prefix(folder) == str(folder / "ckpt-final")
    (folder / "checkpoint").unlink()
    assert checkpoint_prefix(folder) == str(folder / "ckpt-final")
    assert names(folder) == ["ckpt-400", "ckpt-300", "ckpt-200"]
    save(CheckpointStore(folder), 500)
    newest_everywhere(folder, "ckpt-500")


def test_one_that_is_removed_while_the_folder_is_looked_through(folder, monkeypatch):
    """By a training, under the eyes of eval.py."""
    read = checkpoint.read_description

    def removed_meanwhile(prefix):
        if Path(prefix).name == "ckpt-200":
            remove_bundle(Path(prefix))
        return read(prefix)

    monkeypatch.setattr(checkpoint, "read_description", removed_meanwhile)
    assert checkpoint_prefix(folder) == str(folder / "ckpt-400")


def test_names_of_others_are_left_alone(folder):
    for name in ("ckpt-200-mine.index", "ckpt-7.json.bak", "ckpt-mine.json", "ckpt-8"):
        (folder / name).write_text("mine")
    for name in ("ckpt-9.json", "ckpt-9.data-00000-of-00001", "ckpt-9.data-00001-of-00002"):
        (folder / name).write_text("of a save that was killed")
    save(CheckpointStore(folder), 500)
    assert {file.name for file in folder.iterdir() if file.read_bytes() == b"mine"} == {
        "ckpt-200-mine.index",
        "ckpt-7.json.bak",
        "ckpt-mine.json",
        "ckpt-8",
    }
    assert not list(folder.glob("ckpt-9*"))


def test_put_aside(folder):
    subfolder = CheckpointStore(folder).move_to_subfolder()
    assert os.listdir(folder) == [subfolder.name]
    newest_everywhere(subfolder, "ckpt-400")
    assert CheckpointStore(folder).move_to_subfolder() is None


# damage


def damage(path, *, old=None, new=None):
    """Flip a bit in the middle, or exchange some bytes; in a file of its own, as `ckpt` may be a second name of it."""
    content = bytearray(path.read_bytes())
    if old is None:
        content[len(content) // 2] ^= 1
    else:
        assert old in content
        content = content.replace(old, new)
    path.unlink()
    path.write_bytes(content)


def cut(folder):
    (folder / "ckpt-400.json").write_text((folder / "ckpt-400.json").read_text()[:-20])


def another_number(folder):
    damage(folder / "ckpt-400.json", old=b'"images_seen": 3200', new=b'"images_seen": 3201')


def another_s_description(folder):
    shutil.copyfile(folder / "ckpt-300.json", folder / "ckpt-400.json")


def another_s_bundle(folder):
    for suffix in (".index", ".data-00000-of-00001"):
        (folder / f"ckpt-400{suffix}").unlink()
        shutil.copyfile(folder / f"ckpt-300{suffix}", folder / f"ckpt-400{suffix}")


def no_description(folder):
    (folder / "ckpt-400.json").unlink()


def by_hand(key, value):
    def change(folder):
        path = folder / "ckpt-400.json"
        content = json.loads(path.read_text())
        del content["checksum"]
        path.write_text(json.dumps({**content, key: value}))

    return change


DAMAGES = {
    "cut": (cut, "is not a valid description of a checkpoint"),
    "another number": (another_number, "checksum mismatch: the file has changed since it was written"),
    "description of another": (another_s_description, r"does not belong to .*ckpt-400.index"),
    "bundle of another": (another_s_bundle, r"does not belong to .*ckpt-400.index"),
    "no description": (no_description, "is no training checkpoint from which to resume"),
    "run is no mapping": (by_hand("run", []), r"run is \[\]; expected dict"),
    "category without name": (
        by_hand("categories", [{"id": 1}]),
        r"a category is \{'id': 1\}; expected an id and a name",
    ),
    "bit of the data": (
        lambda folder: damage(folder / "ckpt-400.data-00000-of-00001"),
        "cannot be read as a checkpoint",
    ),
    "bit of the index": (lambda folder: damage(folder / "ckpt-400.index"), "does not belong to"),
    "empty index": (
        lambda folder: (damage(folder / "ckpt-400.index"), (folder / "ckpt-400.index").write_bytes(b"")),
        "does not belong to",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told_in_a_line_and_the_one_before_is_taken(folder, name):
    change, message = DAMAGES[name]
    change(folder)
    lines = []
    assert CheckpointStore(folder).newest(log=lines.append).prefix == str(folder / "ckpt-300")
    assert len(lines) == (name != "no description")  # it is of another tool and therefore older
    for line in lines:
        assert re.search(
            f"^warning: .*({message}|cannot be read as a checkpoint).*; using the previous checkpoint$", line
        )
    with pytest.raises(InputError, match=f"{message}|cannot be read as a checkpoint"):
        read_checkpoint(str(folder / "ckpt-400"))


def test_all_damaged(folder):
    for path in folder.glob("ckpt-*.json"):
        path.unlink()
    with pytest.raises(InputError, match=r"none of its 3 checkpoints can be read; remove them, or use --resume=never"):
        CheckpointStore(folder).newest(log=print)


def test_damaged_ones_do_not_hold_the_places_of_whole_ones(folder):
    cut(folder)
    save(CheckpointStore(folder), 310, 320)
    assert steps_in(folder) == [300, 310, 320]


# kills and disks


def test_killed_at_any_moment_of_a_save(template, tmp_path):
    """Over a checkpoint of the same step, with an older one to remove."""

    def prepared():
        for number in range(1, 1000):
            shutil.copytree(template, tmp_path / str(number))
            stores.append(CheckpointStore(tmp_path / str(number)))
            yield

    def save_again(number):
        stores[-1].save({**arrays_of(300), "value": np.float32([-1])}, describe(300, images=1))

    stores, seen = [], []
    prepare = prepared()
    next(prepare)
    for number, _ in each_moment(save_again):
        folder = tmp_path / str(number)
        source = CheckpointStore(folder).newest(log=pytest.fail)
        newest = source.arrays["global_step"], source.arrays["value"][0], source.description.run["images_seen"]
        assert newest in ((400, 400, 3200), (300, -1, 1))
        seen.append(newest[0])
        arrays, description = read_bundle(folder / "ckpt")
        assert (arrays["value"][0], description.run["images_seen"]) in ((400, 3200), (-1, 1))
        read_bundle(tf.train.latest_checkpoint(str(folder)))
        assert Path(checkpoint_prefix(folder)).name == Path(source.prefix).name
        save(CheckpointStore(folder), 500)
        newest_everywhere(folder, "ckpt-500")
        assert not [name for name in os.listdir(folder) if name.startswith(".")]
        for index in folder.glob("*.index"):  # no data file that is not read
            assert len(list(folder.glob(f"{index.stem}.data-*"))) == index.read_bytes()[4]
        next(prepare)
    assert set(seen) == {300, 400}
    assert seen == sorted(seen, reverse=True)


def test_where_the_file_system_has_no_hard_links(tmp_path, monkeypatch):
    def refused(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3, 3, 4):
        save(store, step)
        newest_everywhere(tmp_path, f"ckpt-{step}")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("call", ["link and copy", "remove"])
def test_a_folder_that_becomes_read_only_meanwhile_is_one_line(folder, monkeypatch, call):
    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    if call == "remove":
        monkeypatch.setattr("efficientdet.checkpoints.store.remove_bundle", refused)
    else:
        monkeypatch.setattr(os, "link", refused)
        monkeypatch.setattr(shutil, "copyfile", refused)
    with pytest.raises(InputError, match=r"model_dir.*\(Read-only file system\)") as caught:
        save(CheckpointStore(folder), 500)
    assert "\n" not in str(caught.value)
    CheckpointStore(folder).newest(log=pytest.fail)
    read_bundle(folder / "ckpt")
