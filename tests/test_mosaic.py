"""Mosaic: four augmented images around a point, as a function of seed and position, at any place of the stream."""

import itertools
from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest
import tensorflow as tf

from dataset.input.input_config import InputConfig
from dataset.input.mosaic import Mosaic
from dataset.input.pipeline import training_dataset
from dataset.records.record_index import index_records
from dataset.records.schema import Record, RecordObject, encode_record
from program_support.errors import InputError

COUNT, SIDE = 12, 64
FILL = (124, 116, 104)


def color_of(number):
    """Far from the fill's and from each other's."""
    return (20 * number, 255 - 20 * number, 255 if number % 2 else 0)


def written(folder, *, broken=None):
    """Images of one color; each holds one object over the middle half, of the category of its number."""
    path = str(folder / "part-00000-of-00001.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(COUNT):
            pixels = np.full((96, 80, 3), color_of(number), np.uint8)
            encoded = cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()
            thing = RecordObject(box_xywh=(20, 24, 40, 48), category_id=number + 1, category_name="?", area=40 * 48)
            record = Record(
                encoded=encoded,
                height=96,
                width=80,
                file_name=f"{number}.png",
                image_id=number,
                image_format="png",
                objects=[thing],
            )
            writer.write(encode_record(replace(record, encoded=b"no image") if number == broken else record))
    return index_records([path])


def config(**changes):
    settings = {
        "image_size": (SIDE, SIDE),
        "batch_size": 4,
        "category_ids": tuple(range(1, COUNT + 1)),
        "seed": 3,
        "max_instances_per_image": 8,
        "jitter_min": 0.5,
        "jitter_max": 1.5,
        "composition": Mosaic(1.0, (SIDE, SIDE)),
    }
    return InputConfig.letterboxed(**{**settings, **changes})


def batches(index, count, inputs, **place):
    return [
        tf.nest.map_structure(lambda values: values.numpy(), batch)
        for batch in itertools.islice(training_dataset(index, inputs, **place), count)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return written(tmp_path_factory.mktemp("records"))


def test_each_object_lies_on_the_pixels_of_its_own_image(index):
    seen = Counter()
    for batch in batches(index, 10, config()):
        for image, boxes, classes, valid in zip(
            batch.images, batch.objects.boxes, batch.objects.classes, batch.objects.valid, strict=True
        ):
            assert 1 <= valid.sum() <= 4
            for box, number in zip(boxes[valid], classes[valid], strict=True):
                assert (box >= 0).all()
                assert (box <= SIDE).all()
                assert (box[2:] > box[:2]).all()
                top, left, bottom, right = np.rint(box).astype(int)
                inside = image[top : max(bottom, top + 1), left : max(right, left + 1)].reshape(-1, 3).astype(int)
                assert (np.abs(inside - color_of(number)).max(axis=-1) <= 2).mean() > 0.85
                seen[number] += 1
    assert set(seen) == set(range(COUNT))


def test_the_rest_has_the_color_of_padding(index):
    known = np.int32([color_of(number) for number in range(COUNT)] + [FILL])
    filled = 0
    for batch in batches(index, 3, config()):
        pixels = batch.images.reshape(-1, 1, 3).astype(np.int32)
        nearest = np.abs(pixels - known).max(axis=-1)
        assert nearest.min(axis=1).max() <= 2
        filled += (nearest.argmin(axis=1) == COUNT).sum()
        assert (batch.sizes == SIDE).all()
    assert filled > 0


def test_the_sequence_is_the_same_from_any_step_and_on_any_number_of_ranks(index):
    whole = batches(index, 6, config())
    later = batches(index, 3, config(batch_size=2), first_position=3 * 4, rank=1, world_size=2)
    for one, part in zip(whole[3:], later, strict=True):
        second_half = tf.nest.map_structure(lambda values: values[2:], one)
        tf.nest.map_structure(np.testing.assert_array_equal, second_half, part)


def test_half_of_the_images_are_mosaics_and_the_others_are_what_they_were(index):
    plain, half = (
        batches(index, 30, config(composition=composition)) for composition in (None, Mosaic(0.5, (SIDE, SIDE)))
    )
    same = np.concatenate(
        [(one.images == two.images).all(axis=(1, 2, 3)) for one, two in zip(plain, half, strict=True)]
    )
    assert 40 <= same.sum() <= 80  # of 120: 60 +- 3.6 standard deviations
    for one, two in zip(plain, half, strict=True):
        np.testing.assert_array_equal(one.image_ids, two.image_ids)


def test_a_record_that_only_a_mosaic_reads_is_named(tmp_path):
    index = written(tmp_path, broken=7)
    with pytest.raises(InputError, match=r"part-00000-of-00001\.tfrecord: the record at byte \d+ \(7\.png, image 7\)"):
        batches(index, 3, config())


@pytest.mark.parametrize("probability", [0.0, 1.5])
def test_a_probability_is_one(probability):
    with pytest.raises(InputError, match="probability"):
        Mosaic(probability, (SIDE, SIDE))
