import pytest
import tensorflow as tf
from PIL import Image

from dataset.records.record_files import expand_glob
from program_support.errors import InputError


def test_files_come_sorted_and_folders_are_no_files(tmp_path):
    for name in ("train-00001-of-00002.tfrecord", "train-00000-of-00002.tfrecord", "train.classes.json"):
        (tmp_path / name).touch()
    (tmp_path / "train-folder").mkdir()
    assert expand_glob(tmp_path / "train-*") == [str(tmp_path / f"train-0000{i}-of-00002.tfrecord") for i in range(2)]


def test_an_empty_match_names_the_pattern_and_what_is_there(tmp_path):
    (tmp_path / "val-00000-of-00001.tfrecord").touch()
    with pytest.raises(InputError, match=r"train-\*: no file matches; the folder .* holds val-00000-of-00001"):
        expand_glob(tmp_path / "train-*")
    with pytest.raises(InputError, match=r"there is no folder .*missing"):
        expand_glob(tmp_path / "missing" / "train-*")
    with pytest.raises(InputError, match="is itself a pattern"):
        expand_glob(tmp_path / "*" / "train-*")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="is empty"):
        expand_glob(tmp_path / "empty" / "*")


def test_a_long_folder_is_not_listed_whole(tmp_path):
    for i in range(9):
        (tmp_path / f"file{i}").touch()
    with pytest.raises(InputError, match="file4 and 4 more"):
        expand_glob(tmp_path / "train-*")


def test_shards_of_two_conversions_are_refused_together(tmp_path):
    for name in ("train-00000-of-00002.tfrecord", "train-00000-of-00004.tfrecord", "val-00000-of-00001.tfrecord"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match="several conversions, of 2 and of 4"):
        expand_glob(tmp_path / "train-*")
    assert len(expand_glob(tmp_path / "*-of-00001*")) == 1
    assert len(expand_glob(tmp_path / "*0[12].tfrecord")) == 2  # two data sets of different shard counts are legal


def records(path, *, count=1):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(count):
            writer.write(b"payload")


def line(pattern):
    with pytest.raises(InputError) as caught:
        expand_glob(pattern)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_of_records_names_the_patterns(tmp_path):
    for name in ("train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord", "val-00000-of-00001.tfrecord"):
        records(tmp_path / name)
    (tmp_path / "train.classes.json").write_text("{}")
    assert line(tmp_path) == (
        f"{tmp_path}: is a folder, expected a pattern that names records; give '{tmp_path}/train-*' "
        f"(2 files) or '{tmp_path}/val-*' (1 file)"
    )
    assert line(tmp_path / "train") == f"{tmp_path}/train: no file matches; give '{tmp_path}/train-*' (2 files)"
    assert line(tmp_path / "*") == (
        f"{tmp_path}/train.classes.json: is json, expected records; give '{tmp_path}/train-*' (2 files) or "
        f"'{tmp_path}/val-*' (1 file)"
    )


def test_a_folder_of_records_of_another_tool(tmp_path):
    for name in ("cats1.record", "cats2.record"):
        records(tmp_path / name)
    assert f"give '{tmp_path}/*.record' (2 files)" in line(tmp_path)
    assert len(expand_glob(tmp_path / "cats*")) == 2


def test_a_folder_of_something_else(tmp_path):
    assert "is empty" in line(tmp_path)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    assert "holds a.jpg" in line(tmp_path)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 0.5 0.5 0.25 0.125\n")
    assert "it holds no records but a.txt, which is a file of YOLO labels: convert the data set to records" in line(
        tmp_path
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.json",
            '{"images": []}',
            "is a COCO json, expected records; convert the data set",
        ),
        ("data.yaml", "train: images\nnames: [cat]\n", "is a YOLO data.yaml, expected records; convert the data set"),
        ("a.csv", "a.jpg,1,2,3,4,cat\n" * 2, "is a csv table, expected records; convert the data set"),
        ("a.jpg", "\xff\xd8\xff\xe0", "is an image, expected records; convert the data set"),
    ],
)
def test_other_files_say_what_they_are(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="latin-1")
    assert message in line(tmp_path / name)
