import pytest

from dataset.record_files import expand_glob
from object_detection.errors import InputError


def test_files_come_sorted_and_folders_are_no_files(tmp_path):
    for name in ("train-00001-of-00002.tfrecord", "train-00000-of-00002.tfrecord", "train.classes.json"):
        (tmp_path / name).touch()
    (tmp_path / "train-folder").mkdir()
    assert expand_glob(tmp_path / "train-*") == [
        str(tmp_path / f"train-0000{i}-of-00002.tfrecord") for i in range(2)]


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
