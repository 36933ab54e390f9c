import errno
import gc
import itertools
import os
import threading
from concurrent.futures.thread import _global_shutdown_lock
from pathlib import Path

import pytest
import tensorflow as tf
from letterboxed_inputs import letterboxed
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tiny_records import HEADER, altered, example, starts, without_box_keys, write

from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import evaluation_dataset, training_dataset
from dataset.input.record_batches import input_error
from dataset.records import record_index
from dataset.records.record_index import RecordReader, index_records
from program_support.errors import InputError


def config(**changes):
    return letterboxed(**{"image_size": (16, 16), "batch_size": 2, "category_ids": (1,), **changes})


def training(paths, *, first_position=0, rank=0, world_size=1, **changes):
    return training_dataset(
        index_records(paths), config(**changes), first_position=first_position, rank=rank, world_size=world_size
    )


def failure_of(batches, *, at_most=200):
    """The message, in one line, and how many batches came before."""
    delivered = []
    with pytest.raises(InputError) as raised:
        delivered.extend(None for _ in itertools.islice(batches, at_most))
    assert "\n" not in str(raised.value)
    assert "{{" not in str(raised.value)
    return str(raised.value), len(delivered)


@pytest.fixture
def shards(tmp_path):
    return [write(tmp_path / name, [example(i) for i in range(40)]) for name in ("first", "second")]


# --- slow storage


@pytest.mark.parametrize("dataset", [training_dataset, evaluation_dataset])
def test_records_are_read_ahead_in_parallel_and_with_one_call_each(shards, monkeypatch, dataset):
    """The first 64 reads wait for each other, so that they end only if all are in flight."""
    together, calls, read = threading.Barrier(64), itertools.count(), os.pread

    def waiting_read(descriptor, size, offset):
        if next(calls) < 64:
            together.wait(timeout=20)
        return read(descriptor, size, offset)

    batches = dataset(index_records(shards), config(batch_size=8))
    monkeypatch.setattr(os, "pread", waiting_read)
    next(iter(batches))
    assert not together.broken


# --- files


@pytest.mark.parametrize("open_files", [0, 1, 512])
def test_a_shard_that_is_deleted_is_named_whether_it_was_open_or_not(shards, monkeypatch, open_files):
    monkeypatch.setattr(record_index, "_MOST_OPEN_FILES", open_files)
    batches = iter(training(shards))
    next(batches)
    os.remove(shards[1])
    message, _ = failure_of(batches)
    assert message.startswith(f"{shards[1]}: ")
    assert "deleted or replaced" in message or "cannot be read (No such file or directory)" in message


def test_a_shard_that_is_replaced_is_named(shards, tmp_path):
    batches = iter(training(shards))
    next(batches)
    os.replace(write(tmp_path / "new", [example(i) for i in range(80)]), shards[0])
    assert failure_of(batches)[0] == f"{shards[0]}: deleted or replaced while in use"


def test_a_shard_that_was_moved_aside_is_still_read(shards):
    batches = iter(training(shards))
    os.rename(shards[0], shards[0] + ".moved")
    assert len(list(itertools.islice(batches, 100))) == 100


def test_a_shard_that_shrinks_is_named(shards):
    batches = iter(training(shards))
    next(batches)
    os.truncate(shards[0], 1000)
    message, _ = failure_of(batches)
    assert message.startswith(f"{shards[0]}: the record at byte ")
    assert message.endswith("the file changed while in use")


@pytest.mark.parametrize("open_files", [0, 512])
def test_a_file_system_that_fails_is_named(shards, monkeypatch, open_files):
    monkeypatch.setattr(record_index, "_MOST_OPEN_FILES", open_files)
    dataset = training(shards)

    def failing(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(record_index.os, "pread", failing)
    monkeypatch.setattr(record_index, "open", failing, raising=False)
    message, _ = failure_of(dataset)
    assert message.split(": ")[0] in shards
    assert message.endswith("cannot be read (Input/output error)")


def test_a_shard_that_vanishes_before_the_first_batch_is_named(shards):
    index = index_records(shards)
    os.remove(shards[1])
    with pytest.raises(InputError, match=r"second: cannot be read \(No such file or directory\)"):
        training_dataset(index, config())
    with pytest.raises(InputError, match="second: cannot be read"):
        ground_truth_of_records(index, ClassNames((1,), ("a",)))


# --- records


def broken_jpeg(number):
    whole = tf.train.Example.FromString(example(number)).features.feature["image/encoded"].bytes_list.value[0]
    return altered(number, {"encoded": [whole[:100]]})  # it ends inside its header


@pytest.mark.parametrize(("rank", "world_size", "first_position"), [(0, 1, 46), (1, 3, 20)])
def test_an_undecodable_image_is_named_with_its_place(tmp_path, rank, world_size, first_position):
    payloads = [broken_jpeg(i) if i == 13 else example(i) for i in range(23)]
    path = write(tmp_path / "shard", payloads)
    message, done = failure_of(training([path], rank=rank, world_size=world_size, first_position=first_position))
    assert message.startswith(f"{path}: the record at byte {starts(payloads)[13]} (13.jpg, image 13) cannot be used: ")
    assert "JPEG" in message
    sound = training(
        [write(tmp_path / "sound", [example(i) for i in range(23)])],
        rank=rank,
        world_size=world_size,
        first_position=first_position,
    )
    ids = [batch.image_ids.numpy().tolist() for batch in itertools.islice(sound, done + 1)]
    assert 13 in ids[done]  # what came before was delivered, nothing else was lost
    assert 13 not in itertools.chain(*ids[:done])


@pytest.mark.parametrize(("rank", "named"), [(0, 6), (1, 1)])
def test_an_undecodable_image_of_an_evaluation_is_named(tmp_path, rank, named):
    payloads = [broken_jpeg(i) if i in (1, 6) else example(i) for i in range(9)]
    index = index_records([write(tmp_path / "shard", payloads)])
    message, _ = failure_of(evaluation_dataset(index, config(), rank=rank, world_size=2))
    assert f"at byte {starts(payloads)[named]} ({named}.jpg, image {named}) cannot be used" in message


@pytest.mark.parametrize(
    ("reader", "payload", "reason"),
    [
        ("training", example(1, category_id=7), "unknown category ids [7], the categories are [1]"),
        ("evaluation", altered(1, {"object/bbox/xmax": [0.5, 0.6]}), "lists of unequal lengths"),
        ("training", altered(1, {"encoded": None}), "image/encoded"),
        ("training", altered(1, {"encoded": [b"hello"]}), "Unknown image file format"),
        ("evaluation", altered(1, {"encoded": [b"hello"]}), "Unknown image file format"),
        ("evaluation", b"garbage", "Could not parse example"),
    ],
)
def test_what_is_wrong_with_a_record_is_told_in_one_line(tmp_path, reader, payload, reason):
    """Both readers parse records with the same function, and decode images with functions of their own."""
    path = write(tmp_path / "shard", [example(0), payload])
    batches = training([path]) if reader == "training" else evaluation_dataset(index_records([path]), config())
    message, _ = failure_of(batches)
    assert message.startswith(f"{path}: the record at byte {starts([example(0)] * 2)[1]} (")
    assert reason in message


def test_a_record_of_the_ground_truth_is_named(tmp_path):
    path = write(tmp_path / "shard", [example(0), altered(1, {"object/bbox/xmax": [0.5, 0.6]})])
    with pytest.raises(InputError, match=r"1\.jpg, image 1\) cannot be used: lists of unequal lengths"):
        ground_truth_of_records(index_records([path]), ClassNames((1,), ("a",)))


def test_absent_keys_are_no_boxes_where_nothing_was_verified(tmp_path):
    batch = next(iter(training([write(tmp_path / "shard", [without_box_keys(i) for i in range(4)])])))
    assert not batch.objects.valid.numpy().any()


# --- bits


def evaluated(index):
    """What an evaluation reads: the truth, then the images."""
    ground_truth_of_records(index, ClassNames((1,), ("a",)))
    return evaluation_dataset(index, config())


READERS = {
    "evaluation": evaluated,
    "training": lambda index: itertools.islice(training_dataset(index, config()), 40),
}


@pytest.mark.parametrize(("reader", "open_files"), [("evaluation", 512), ("training", 512), ("training", 0)])
def test_a_single_flipped_bit_never_gives_other_data(tmp_path, monkeypatch, reader, open_files):
    monkeypatch.setattr(record_index, "_MOST_OPEN_FILES", open_files)
    payloads = [example(i, boxes=2) for i in range(6)]
    path = tmp_path / "val"
    whole = Path(write(path, payloads)).read_bytes()
    begin, end = starts(payloads)[3:5]
    for place in (begin + 2, begin + 9, begin + HEADER + 40, end - 3):  # length, its checksum, payload, its checksum
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        message = rf"^{path}: .*checksum mismatch in the record .*at byte {begin}\b"
        with pytest.raises(InputError, match=message) as raised:
            list(READERS[reader](index_records([str(path)])))
        assert "\n" not in str(raised.value)
        assert place < begin + HEADER or "(image 4 of 6)" in str(raised.value)


def test_a_bit_that_flips_while_a_training_reads_is_told(shards):
    batches = iter(training(shards))
    next(batches)
    with open(shards[1], "r+b") as file:
        file.seek(starts([example(i) for i in range(40)])[20] + HEADER + 3)
        bit = file.read(1)[0] ^ 1
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([bit]))
    message, _ = failure_of(batches)
    assert message.startswith(f"{shards[1]}: damaged: checksum mismatch in the record at byte ")
    assert "(image 61 of 80)" in message


# --- what would wait forever


def test_reading_waits_for_no_executor(shards):
    """The collector may destroy an iterator, which waits for its reading, while another executor's lock is held."""
    batches = training(shards)
    reading = threading.Thread(target=lambda: next(iter(batches)), daemon=True)
    with _global_shutdown_lock:
        reading.start()
        reading.join(timeout=20)
        assert not reading.is_alive()


def test_an_error_keeps_no_iterator(shards):
    def iterators():
        return sum(isinstance(one, OwnedIterator) for one in gc.get_objects())

    before = iterators()
    with pytest.raises(InputError) as raised:
        list(training(shards, category_ids=(9,)))
    assert iterators() == before
    assert raised.value.__traceback__ is not None


# --- what records are not to blame for


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (MemoryError("so large"), tf.errors.ResourceExhaustedError),
        (RuntimeError("a mistake of ours"), tf.errors.UnknownError),
        (ValueError("a mistake of ours"), tf.errors.InvalidArgumentError),
    ],
)
def test_other_errors_stay_what_they_are(shards, monkeypatch, raised, seen):
    def read(*_):
        raise raised

    monkeypatch.setattr(RecordReader, "start_reading", read)
    with pytest.raises(seen, match=str(raised)):
        next(iter(training(shards)))


def test_an_error_without_a_record_to_blame_is_one_line_too():
    message = "{{function_node f}} Shapes must match: [1] != [2]\n\t [[{{node stack}}]] [Op:IteratorGetNext] name: "
    error = input_error(tf.errors.InvalidArgumentError(None, None, message))
    assert str(error) == "a record cannot be used: Shapes must match: [1] != [2]"
    assert input_error(tf.errors.CancelledError(None, None, message)) is None
