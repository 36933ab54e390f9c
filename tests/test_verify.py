import math
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from tiny_records import FOOTER, HEADER, altered, example, starts, without_box_keys, write

from dataset.records import verify
from dataset.records.record_index import RecordReader, index_records
from dataset.records.verify import verify_records
from program_support.errors import InputError


def verified(paths, *, when="always", max_bad_fraction=0.01, category_ids=None):
    said = []
    index = verify_records(
        index_records(paths), when=when, max_bad_fraction=max_bad_fraction, log=said.append, category_ids=category_ids
    )
    return index, said


def image_ids(index):
    return [
        tf.train.Example.FromString(payload).features.feature["image/source_id"].bytes_list.value[0].decode()
        for payload in RecordReader(index).read(np.arange(len(index)))
    ]


def refusal(paths, **settings):
    with pytest.raises(InputError) as raised:
        verified(paths, **settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


# --- checksums


@pytest.mark.parametrize("when", ["auto", "always"])
def test_good_records_stay_and_an_image_without_boxes_is_one(tmp_path, when):
    paths = [
        write(tmp_path / str(shard), [example(shard * 4 + i, boxes=i % 2) for i in range(4)]) for shard in range(2)
    ]
    index, said = verified([*paths, write(tmp_path / "empty", [])], when=when, category_ids=(1,))
    assert (len(index), said) == (8, [])


def test_a_flipped_bit_anywhere_is_found_with_file_and_offset(tmp_path):
    payloads = [example(i) for i in range(3)]
    sound = write(tmp_path / "sound", payloads)  # the same offsets: the file must be the right one
    content = (tmp_path / "sound").read_bytes()
    begins = starts(payloads)
    places = {begin + shift for begin in begins for shift in (0, 7, 8, HEADER - 1, HEADER)}
    places |= {end - shift for end in [*begins[1:], len(content)] for shift in (1, FOOTER, FOOTER + 1)}
    for place in sorted({*places, *range(0, len(content), 331)}):
        path = tmp_path / "flipped"
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        begin = max(begin for begin in begins if begin <= place)
        message = refusal([sound, str(path)])
        assert message.startswith(f"{path}: "), message
        assert "checksum mismatch in the record" in message, (place, message)
        assert re.search(rf"at byte {begin}\b", message), (place, message)


@pytest.mark.parametrize("change", ["append", "shorten", "delete", "swap"])
def test_a_file_that_changes_after_it_was_indexed_is_refused(tmp_path, change):
    payloads = [example(0), example(1, boxes=3)]
    paths = [write(tmp_path / "first", payloads), write(tmp_path / "second", payloads)]
    index = index_records(paths)
    if change == "append":
        write(paths[1], [*payloads, example(2)])
    elif change == "shorten":
        os.truncate(paths[1], starts(payloads)[1])
    elif change == "delete":
        os.remove(paths[1])
    else:
        write(paths[1], payloads[::-1])
    with pytest.raises(InputError, match="second") as raised:
        verify_records(index, when="always", max_bad_fraction=0.0, log=print)
    assert "\n" not in str(raised.value)


# --- when


def test_auto_verifies_all_of_small_sets_only(tmp_path, monkeypatch):
    payloads = [example(i) for i in range(3)]
    path = write(tmp_path / "shard", payloads)
    with open(path, "r+b") as file:
        file.seek(starts(payloads)[2] - 1)  # of the second record's checksum
        file.write(b"?")
    for limit in ("AUTO_BYTES", "AUTO_RECORDS"):
        assert "checksum mismatch" in refusal([path], when="auto")
        monkeypatch.setattr(verify, limit, 2)
        index, said = verified([path], when="auto")
        assert len(index) == 3
        assert len(said) == 1
        assert said[0] == "0.0 GB of records are not verified; --verify_records=always does it"
        assert "checksum mismatch" in refusal([path], when="always")
        assert verified([path], when="never")[1] == []
        monkeypatch.undo()


# --- contents


def test_records_without_keys_are_left_out_up_to_the_fraction(tmp_path):
    paths = [write(tmp_path / "a", [example(0), without_box_keys(1)]), write(tmp_path / "b", [example(2), example(3)])]
    index, (warning,) = verified(paths, max_bad_fraction=0.25)
    assert image_ids(index) == ["0", "2", "3"]
    assert warning == (
        f"warning: 1 of 4 records hold no box keys (image/object/bbox/..): 1.jpg, image 1 "
        f"(byte {starts([example(0)] * 2)[1]} of {tmp_path}/a); skipped"
    )
    message = refusal(paths, max_bad_fraction=0.2)
    assert message.startswith("1 of 4 records hold no box keys")
    assert ": 25.00% of the records; expected at most 20.00%; if they are images without objects, " in message
    assert "--verify_records=never keeps them as such; --max_bad_fraction=0.25" in message


@pytest.mark.parametrize(("bad", "of"), [(1, 3), (2, 3), (1, 7), (5, 6)])
def test_the_fraction_that_is_advised_lets_it_pass(tmp_path, bad, of):
    path = write(tmp_path / "a", [without_box_keys(i) if i < bad else example(i) for i in range(of)])
    advised = refusal([path], max_bad_fraction=0.0).split("--max_bad_fraction=")[1].split()[0]
    assert image_ids(verified([path], max_bad_fraction=float(advised))[0]) == [str(i) for i in range(bad, of)]


def test_nothing_left_to_learn_from_is_refused_whatever_is_allowed(tmp_path):
    path = write(tmp_path / "captions", [without_box_keys(i) for i in range(5)])
    message = refusal([path], max_bad_fraction=1.0)
    assert message.startswith("5 of 5 records hold no box keys (image/object/bbox/..): 0.jpg, image 0 (byte 0 of ")
    assert "and 2 more: 100.00% of the records" in message
    assert "were they made without annotations?" in message
    assert len(verified([path], when="never")[0]) == 5
    empty = write(tmp_path / "empty", [example(i, boxes=0) for i in range(3)])
    assert "empty: no boxes in 3 records" in refusal([empty])


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ({"object/bbox/xmax": [0.5, 0.6]}, "lists of unequal lengths"),
        ({"object/bbox/xmin": [math.nan]}, "nan"),
        ({"object/class/label": [9]}, r"unknown category ids [9], the categories are [1]"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused_whatever_is_allowed(tmp_path, features, found):
    payloads = [example(0), altered(1, features)]
    path = write(tmp_path / "shard", payloads)
    message = refusal([path], max_bad_fraction=1.0, category_ids=(1,))
    assert message.startswith(f"{path}: the record at byte {starts(payloads)[1]} (1.jpg, image 1) holds ")
    assert found in message
