import numpy as np
import pytest
import tensorflow as tf

from dataset import verify
from dataset.pipeline import InputConfig, next_batch, training_dataset
from dataset.record_index import RecordReader, index_records
from dataset.records import Record, RecordObject, encode_record
from dataset.verify import verify_records
from object_detection.errors import InputError


def example(number, *, boxes=1):
    pixels = np.full((16, 16, 3), number % 256, np.uint8)
    objects = [RecordObject(box_xywh=(1, 1, 8, 8), category_id=1, category_name="a", area=64.0)] * boxes
    return encode_record(Record(encoded=tf.io.encode_jpeg(pixels).numpy(), height=16, width=16, file_name=f"{number}.jpg",
                                image_id=number, objects=objects))


def without_box_keys(number):
    message = tf.train.Example.FromString(example(number))
    for key in [key for key in message.features.feature if key.startswith("image/object/")]:
        del message.features.feature[key]
    return message.SerializeToString()


def write(path, payloads):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def verified(paths, *, when="always", max_bad_fraction=0.01):
    said = []
    return verify_records(index_records(paths), when=when, max_bad_fraction=max_bad_fraction, say=said.append), said


def test_good_records_stay_and_an_image_without_boxes_is_one(tmp_path):
    paths = [write(tmp_path / str(shard), [example(shard * 4 + i, boxes=i % 2) for i in range(4)]) for shard in range(2)]
    index, said = verified(paths)
    assert (len(index), said) == (8, [])


@pytest.mark.parametrize("record", [0, 2])
def test_one_flipped_bit_is_found_with_file_and_offset(tmp_path, record):
    path = write(tmp_path / "shard", [example(i) for i in range(3)])
    index = index_records([path])
    content = bytearray((tmp_path / "shard").read_bytes())
    content[int(index.offsets[record]) + int(index.lengths[record]) // 2] ^= 4
    (tmp_path / "shard").write_bytes(content)
    message = f"shard: damaged: the checksum of the record at byte {index.offsets[record] - 12} does not fit"
    with pytest.raises(InputError, match=message):
        verified([path])
    assert len(verified([path], when="never")[0]) == 3


def test_auto_reads_small_sets_only(tmp_path, monkeypatch):
    path = write(tmp_path / "shard", [without_box_keys(0)])
    with pytest.raises(InputError):
        verified([path], when="auto")
    monkeypatch.setattr(verify, "AUTO_BYTES", 10)
    assert len(verified([path], when="auto")[0]) == 1
    with pytest.raises(InputError, match="--verify_records=sometimes: wanted one of auto, always, never"):
        verified([path], when="sometimes")


def test_records_without_keys_are_skipped_up_to_the_fraction(tmp_path):
    paths = [write(tmp_path / "a", [example(0), example(1), without_box_keys(2)]), write(tmp_path / "b", [example(3)])]
    index, said = verified(paths, max_bad_fraction=0.25)
    assert len(said) == 1
    assert said[0].startswith("warning: 1 of 4 records have no keys of boxes")
    found = [tf.train.Example.FromString(payload).features.feature["image/source_id"].bytes_list.value[0]
             for payload in RecordReader(index).read(np.arange(3))]
    assert found == [b"0", b"1", b"3"]
    with pytest.raises(InputError, match=r"1 of 4 records have no keys .* --max_bad_fraction=0.25 would skip them"):
        verified(paths, max_bad_fraction=0.2)


# --- in mid-run


def batches_of(paths, **changes):
    config = InputConfig(**{"image_size": (16, 16), "batch_size": 2, "category_ids": (1,), **changes})
    return iter(training_dataset(index_records(paths), config))


def read_until_error(batches):
    for _ in range(200):
        next_batch(batches)


def test_a_shard_that_vanishes_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("dataset.record_index._MOST_OPEN_FILES", 1)  # the second is opened for each record
    paths = [write(tmp_path / name, [example(i) for i in range(40)]) for name in ("first", "second")]
    batches = batches_of(paths)
    next_batch(batches)
    (tmp_path / "second").unlink()
    with pytest.raises(InputError, match=r"No such file or directory.*second") as caught:
        read_until_error(batches)
    assert "\n" not in str(caught.value)


def test_a_shard_that_shrinks_is_named(tmp_path):
    path = write(tmp_path / "shard", [example(i) for i in range(400)])
    batches = batches_of([path])
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(InputError, match=r"shard: the record at byte \d+ has .* the file changed while in use") as caught:
        read_until_error(batches)
    assert "\n" not in str(caught.value)


def test_an_unknown_category_is_one_line(tmp_path):
    path = write(tmp_path / "shard", [example(i) for i in range(4)])
    with pytest.raises(InputError, match=r"unknown category id.*\d\.jpg") as caught:
        read_until_error(batches_of([path], category_ids=(7,)))
    assert "\n" not in str(caught.value)
