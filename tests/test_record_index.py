import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from dataset.records.record_index import RecordReader, index_records
from program_support.errors import InputError

PAYLOADS = [b"first", b"", b"third" * 1000, bytes(range(256)), b"fifth"]


@pytest.fixture
def shards(tmp_path):
    paths = [str(tmp_path / f"shard-{i}") for i in range(3)]
    for path, payloads in zip(paths, (PAYLOADS[:2], [], PAYLOADS[2:]), strict=True):
        with tf.io.TFRecordWriter(path) as writer:
            for payload in payloads:
                writer.write(payload)
    return paths


def test_records_of_several_files_are_read_in_any_order(shards):
    index = index_records(shards)
    assert len(index) == len(PAYLOADS)
    assert index.file_numbers.tolist() == [0, 0, 2, 2, 2]
    order = [4, 1, 2, 2, 0, 3]
    assert RecordReader(index).read(np.array(order)) == [PAYLOADS[i] for i in order]


def test_a_file_cut_anywhere_is_refused_with_its_offset(shards, tmp_path):
    whole = Path(shards[2]).read_bytes()
    first_end = 12 + len(PAYLOADS[2]) + 4
    for length, offset in ((5, 0), (30, 0), (first_end - 1, 0), (first_end + 3, first_end), (len(whole) - 1, None)):
        path = tmp_path / f"cut-{length}"
        path.write_bytes(whole[:length])
        offset = len(whole) - (12 + len(PAYLOADS[4]) + 4) if offset is None else offset
        with pytest.raises(InputError, match=f"cut-{length}: cut short: the record at byte {offset} "):
            index_records([str(path)])
    path = tmp_path / "cut-between-records"
    path.write_bytes(whole[:first_end])
    assert len(index_records([str(path)])) == 1


def test_other_files_are_refused(shards, tmp_path):
    compressed = tmp_path / "compressed"
    compressed.write_bytes(gzip.compress(Path(shards[2]).read_bytes()))
    with pytest.raises(InputError, match="compressed with gzip"):
        index_records([str(compressed)])
    text = tmp_path / "text"
    text.write_text("{'images': []} and more text than a header has")
    with pytest.raises(InputError, match="not a TFRecord file"):
        index_records([str(text)])
    with pytest.raises(InputError, match="absent: cannot be read"):
        index_records([str(tmp_path / "absent")])


def test_a_damaged_length_is_told_where_it_is(shards, tmp_path):
    whole = bytearray(Path(shards[2]).read_bytes())
    second = 12 + len(PAYLOADS[2]) + 4
    whole[second] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(whole)
    with pytest.raises(
        InputError, match=f"damaged TFRecord file: checksum mismatch in the record length at byte {second}"
    ):
        index_records([str(path)])


def test_nothing_to_index_is_an_error(shards):
    with pytest.raises(InputError, match="contains no records"):
        index_records([shards[1]])
    with pytest.raises(InputError, match="no file: contains no records"):
        index_records([])
