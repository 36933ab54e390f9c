"""The writer: shards, resuming, and ends of every kind."""

import dataclasses
import errno
import fcntl
import json
import os
import resource

import pytest
import tensorflow as tf
from PIL import Image

from dataset.class_names import read_class_names
from dataset.conversion import convert as convert_module
from dataset.conversion.conversion_flags import default_num_shards
from dataset.conversion.conversion_report import summary_lines
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from program_support import atomic_files
from program_support.errors import InputError

COUNT = 10


@pytest.fixture
def place(tmp_path):
    """A folder with ten images and their annotations: image i has i % 3 boxes."""
    (tmp_path / "images").mkdir()
    images, annotations = [], []
    for number in range(COUNT):
        name = f"{number}.jpg"
        Image.new("RGB", (64, 48), (number, 100, 200)).save(tmp_path / "images" / name)
        images.append({"id": 100 + number, "file_name": name, "width": 64, "height": 48})
        for _ in range(number % 3):
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": 100 + number,
                    "category_id": 5,
                    "bbox": [1, 2, 33, 34],
                    "segmentation": [[1, 2, 34, 2, 34, 36]],
                }
            )
    write(
        tmp_path,
        {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": 5, "name": "box"}, {"id": 2, "name": "none"}],
        },
    )
    return tmp_path


def write(place, content):
    (place / "a.json").write_text(json.dumps(content))


def content_of(place):
    return json.loads((place / "a.json").read_text())


def read(place, **settings):
    return read_coco(object_annotations_file=str(place / "a.json"), **settings)


def config(place, **changes):
    return ConversionConfig(
        **{
            "image_folder": str(place / "images"),
            "output_prefix": str(place / "out" / "train"),
            "num_shards": 3,
            "processes": 1,
            "max_bad_fraction": 0.01,
        }
        | changes
    )


def shards(place):
    return sorted((place / "out").glob("train-*"))


def ids_in(path):
    return [
        int(tf.train.Example.FromString(record.numpy()).features.feature["image/source_id"].bytes_list.value[0])
        for record in tf.data.TFRecordDataset(str(path))
    ]


def make_truncated(place, name):
    path = place / "images" / name
    path.write_bytes(path.read_bytes()[:-60])


def test_record_i_is_in_shard_i_mod_n(place):
    report = convert(read(place), config(place))
    assert [path.name for path in shards(place)] == [f"train-0000{i}-of-00003.tfrecord" for i in range(3)]
    assert [ids_in(path) for path in shards(place)] == [[100, 103, 106, 109], [101, 104, 107], [102, 105, 108]]
    written = json.loads((place / "out" / "train.report.json").read_text())
    assert (report.images, report.boxes) == (written["images"], written["boxes"]) == (10, 9)
    assert written["images_without_boxes"] == 4
    assert written["boxes_per_class"] == {"none": 0, "box": 9}
    assert written["boxes_per_size"] == {"small": 0, "medium": 9, "large": 0}
    assert read_class_names(place / "out" / "train.classes.json").names == ("none", "box")
    hidden = {path.name for path in (place / "out").iterdir() if path.name.startswith(".")}
    assert hidden == {".train.conversion", ".outputs_of_efficientdet.json"}


def test_several_processes_write_the_same(place):
    convert(read(place), config(place))
    convert(read(place), config(place, output_prefix=str(place / "out" / "other"), processes=2))
    for path in shards(place):
        assert path.read_bytes() == path.with_name(path.name.replace("train", "other")).read_bytes()


@pytest.fixture
def counted(monkeypatch):
    """How often an image was checked; setting `fail_at` raises `error` at that image."""

    class Counter:
        count, fail_at, error = 0, None, None

    real = convert_module.check_image

    def check(*arguments, **settings):
        Counter.count += 1
        if Counter.count == Counter.fail_at:
            raise Counter.error
        return real(*arguments, **settings)

    monkeypatch.setattr(convert_module, "check_image", check)
    return Counter


def test_interrupted_run_continues_at_its_last_whole_shard(place, counted):
    counted.fail_at, counted.error = 6, KeyboardInterrupt()  # the second of shard 1
    with pytest.raises(KeyboardInterrupt):
        convert(read(place), config(place))
    assert shards(place) == []
    assert [path.name for path in (place / "out").glob(".*tfrecord*")] == [".train-00000-of-00003.tfrecord.finished"]
    counted.count, counted.fail_at = 0, None
    told = []
    report = convert(read(place), config(place), log=told.append)
    assert counted.count == 6
    assert told == ["1 of 3 shards are complete and reused"]
    assert (report.images, report.boxes) == (10, 9)
    assert len(shards(place)) == 3


def test_rerun_keeps_everything_and_a_lost_shard_is_made_anew(place, counted):
    first = convert(read(place), config(place))
    before = {path: path.stat().st_mtime_ns for path in shards(place)}
    counted.count = 0
    assert convert(read(place), config(place)) == first
    assert counted.count == 0
    lost = shards(place)[1]
    lost.unlink()
    assert convert(read(place), config(place)) == first
    assert counted.count == 3
    assert {path: path.stat().st_mtime_ns for path in shards(place) if path != lost} == {
        path: time_ for path, time_ in before.items() if path != lost
    }


def test_short_shard_is_made_anew(place, counted):
    convert(read(place), config(place))
    counted.count = 0
    path = shards(place)[2]
    path.write_bytes(path.read_bytes()[:-10])
    convert(read(place), config(place))
    assert counted.count == 3
    assert ids_in(path) == [102, 105, 108]


def test_changed_image_and_changed_annotations_are_converted_anew(place, counted):
    convert(read(place), config(place))
    counted.count = 0
    Image.new("RGB", (64, 48), (1, 2, 3)).save(place / "images" / "4.jpg", quality=50)
    convert(read(place), config(place))
    assert counted.count == 3  # the shard of image 4
    content = content_of(place)
    content["annotations"].pop()
    write(place, content)
    assert convert(read(place), config(place)).boxes == 8
    assert counted.count == 3 + COUNT


def test_shards_of_another_number_are_refused(place):
    convert(read(place), config(place))
    with pytest.raises(InputError, match=r"train-00000-of-00003.tfrecord is left from a conversion into 3 shards"):
        convert(read(place), config(place, num_shards=2))
    for path in shards(place):
        path.unlink()
    convert(read(place), config(place, num_shards=2))
    assert len(shards(place)) == 2


def test_too_many_bad_images_publish_nothing_until_allowed(place, counted):
    make_truncated(place, "2.jpg")
    with pytest.raises(InputError, match=r"1 of 10 images would be skipped.*2\.jpg.*--max_bad_fraction=0\.223"):
        convert(read(place), config(place))
    assert not list((place / "out").glob("train-*"))
    refused = json.loads((place / "out" / "train.refused.report.json").read_text())
    assert [entry["file"] for entry in refused["skipped"]] == ["2.jpg"]
    counted.count = 0
    report = convert(read(place), config(place, max_bad_fraction=0.3))
    assert counted.count == 0
    assert (report.images, report.boxes, report.skipped_count("image"), report.skipped_count("box")) == (9, 7, 1, 2)
    assert 102 not in ids_in(shards(place)[2])


def test_image_all_of_whose_boxes_are_refused_is_dropped(place):
    content = content_of(place)
    for number in (0, 1, 2, 3):  # the only box of image 101, both of 102 and the only one of 104
        content["annotations"][number]["bbox"] = [99, 0, 5, 5]
    content["annotations"][5]["bbox"][2] = 0  # one of the two boxes of 105
    write(place, content)
    report = convert(read(place), config(place, max_bad_fraction=0.6))
    assert (report.images, report.boxes, report.images_without_boxes) == (7, 4, 4)
    assert [ids_in(path) for path in shards(place)] == [[100, 103, 106, 109], [107], [105, 108]]
    written = json.loads((place / "out" / "train.report.json").read_text())
    assert (written["images_dropped"], written["images_skipped"], written["boxes_skipped"]) == (3, 0, 5)
    assert written["dropped"] == [
        {"kind": "image", "file": "1.jpg", "reason": "its only box was refused", "image_id": 101},
        {"kind": "image", "file": "4.jpg", "reason": "its only box was refused", "image_id": 104},
        {"kind": "image", "file": "2.jpg", "reason": "all of its 2 boxes were refused", "image_id": 102},
    ]
    lines = summary_lines(report, None)
    assert "dropped  3 x image" in lines
    assert "         1.jpg (image 101): its only box was refused" in lines


def test_crowds_become_objects_where_it_is_requested(place):
    content = content_of(place)
    for annotation in content["annotations"]:
        annotation["iscrowd"] = 1
        annotation["difficult"] = 1
    write(place, content)
    report = convert(read(place), config(place))
    assert (report.crowd_boxes, report.difficult_boxes, sum(report.usable_per_class.values())) == (9, 9, 0)
    names = read(place).class_names
    assert any(line.startswith("warning:") and "--crowds_as_objects" in line for line in summary_lines(report, names))
    report = convert(read(place), config(place, crowds_as_objects=True))
    assert (report.crowd_boxes, report.difficult_boxes, sum(report.usable_per_class.values())) == (0, 0, 9)


def test_absent_images(place):
    (place / "images" / "0.jpg").unlink()
    assert convert(read(place), config(place, max_bad_fraction=0.1)).skipped_count("image") == 1
    with pytest.raises(InputError, match=r"1 of 10 images would be skipped.*0\.jpg.*no such file"):
        convert(read(place), config(place))
    (place / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: none of the 10 images of .*a\.json is in this folder, such as 0"):
        convert(read(place), config(place, image_folder=str(place / "empty")))


def test_all_images_bad(place):
    for number in range(COUNT):
        make_truncated(place, f"{number}.jpg")
    with pytest.raises(InputError, match="all 10 images would be skipped"):
        convert(read(place), config(place, max_bad_fraction=1.0))


def test_a_full_disk_is_told_with_the_name_of_the_file(place, monkeypatch):
    """Of the records, which TensorFlow writes, and of what stands beside them."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(InputError, match=r"train-00000-of-00003.tfrecord.\S+; File too large; finished shards"):
            convert(read(place), config(place))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_files, "flush_to_disk", full)
    with pytest.raises(InputError, match=r"\S+/out/\S+\.json: cannot be written \(No space left on device\)"):
        convert(read(place), config(place))


def test_two_conversions_at_once_are_refused(place):
    settings = config(place)
    settings.state_folder.mkdir(parents=True)
    with open(settings.state_folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another conversion"):
            convert(read(place), settings)


def test_more_shards_than_images_are_written_when_asked_for_and_read(place):
    told = []
    convert(read(place), config(place, num_shards=12), log=told.append)
    assert sum(len(ids_in(path)) for path in shards(place)) == COUNT
    assert told == ["2 of 12 shards will be empty, because there are 10 images; readers ignore empty shards"]
    assert len(index_records(expand_glob(place / "out" / "train-*"))) == COUNT


@pytest.mark.parametrize(("images", "wanted"), [(1, 1), (199, 1), (200, 2), (118287, 32)])
def test_default_number_of_shards(place, images, wanted):
    assert default_num_shards(str(place / "out" / "train"), images=images) == wanted


def test_default_number_of_shards_is_that_of_the_records_it_replaces(place):
    convert(read(place), config(place))
    assert default_num_shards(str(place / "out" / "train"), images=5000) == 3
    assert default_num_shards(str(place / "out" / "other"), images=5000) == 32


def test_what_killed_runs_left_is_cleared_up(place):
    (place / "out" / ".train.conversion").mkdir(parents=True)
    for name in (
        ".train.report.json.partial",
        ".train-00001-of-00003.tfrecord.host-7.partial",
        ".train.report.json.host.7.unfinished",
        ".train.conversion/.00001-of-00003.json.host.7.unfinished",
        ".train-00001-of-00007.tfrecord.finished",
        ".train.conversion/job.json",
    ):
        (place / "out" / name).write_text("{")
    convert(read(place), config(place))
    assert not [path for path in (place / "out").rglob("*") if path.suffix in (".partial", ".finished", ".unfinished")]
    assert len(shards(place)) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_shards": 0}, "--num_shards=0"),
        ({"processes": 0}, "--num_threads=0"),
        ({"max_bad_fraction": 1.5}, "--max_bad_fraction=1.5"),
        ({"output_prefix": "/tmp/"}, "expected FOLDER/name"),
        ({"image_folder": "/nowhere"}, "/nowhere: no such folder"),
    ],
)
def test_settings_are_checked(place, change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(config(place), **change)
