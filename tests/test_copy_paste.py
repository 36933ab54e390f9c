"""Copy-paste: every object has its own color, so that the pixels themselves tell what of it is visible."""

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageDraw

from dataset.input.augmentation import ResizeAndFlip
from dataset.input.copy_paste import CopyPaste
from dataset.input.examples import InputConfig
from dataset.input.pipeline import training_dataset
from dataset.input.resize import letterbox
from dataset.input.tiling import PADDING
from dataset.records.record_index import index_records
from dataset.records.schema import Record, RecordObject, encode_record
from program_support.errors import InputError

SIDE, COUNT, EACH, CELLS = 96, 10, 5, 7
SHAPES = [(96, 72), (72, 96), (96, 96)]  # height and width of image i mod 3: at scale 1 in an input of 96 x 96


def color_of(number):
    """Of object `number`: decoded by `numbers_of`; gray 8 is background."""
    return (40 + 4 * (number % 50), 250 - 60 * (number // 50), 99)


def numbers_of(pixels):
    """[H, W, 3] -> number of the object of each pixel, -1 for others."""
    found = np.full(pixels.shape[:2], -1)
    for number in range(COUNT * EACH):
        found[(pixels == color_of(number)).all(-1)] = number
    return found


def png(values):
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def drawn(image):
    """Pixels of an image and the masks of its objects: ellipses, of which the later ones hide the earlier ones."""
    random, (height, width) = np.random.default_rng(image), SHAPES[image % 3]
    pixels, masks = np.full((height, width, 3), 8, np.uint8), []
    for number in range(EACH):
        canvas = Image.new("1", (width, height))
        left, top = random.integers(0, width - 12), random.integers(0, height - 12)
        right, bottom = left + random.integers(10, 50), top + random.integers(10, 50)
        ImageDraw.Draw(canvas).ellipse([int(left), int(top), int(right), int(bottom)], fill=1)
        mask = np.array(canvas)
        masks = [other & ~mask for other in masks] + [mask]
        pixels[mask] = color_of(EACH * image + number)
    return pixels, masks


def bounds(mask):
    rows, columns = np.nonzero(mask)
    return [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]


def written(folder, *, masks=True, crowds=()):
    path = str(folder / "part-00000-of-00001.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for image in range(COUNT):
            pixels, shapes = drawn(image)
            objects = []
            for number, shape in enumerate(shapes):
                if shape.any():
                    top, left, bottom, right = (float(side) for side in bounds(shape))
                    label = EACH * image + number
                    objects.append(
                        RecordObject(
                            box_xywh=(left, top, right - left, bottom - top),
                            category_id=label + 1,
                            category_name="?",
                            area=float(shape.sum()),
                            is_crowd=label in crowds,
                            mask_png=png(shape.astype(np.uint8)) if masks else None,
                        )
                    )
            record = Record(
                encoded=png(pixels),
                height=len(pixels),
                width=pixels.shape[1],
                file_name=f"{image}.png",
                image_id=image,
                image_format="png",
                objects=objects,
            )
            writer.write(encode_record(record))
    return index_records([path])


def config(**changes):
    settings = {
        "resize": letterbox((SIDE, SIDE)),
        "augmentation": ResizeAndFlip(letterbox((SIDE, SIDE))),
        "batch_size": 4,
        "category_ids": tuple(range(1, COUNT * EACH + 1)),
        "seed": 5,
        "max_instances_per_image": 2 * EACH,
        "mask_size": CELLS,
        "copy_paste": CopyPaste(1.0),
    }
    return InputConfig(**{**settings, **changes})


def batches(index, count, inputs, **place):
    return [
        tf.nest.map_structure(lambda values: values.numpy(), batch)
        for batch in itertools.islice(training_dataset(index, inputs, **place), count)
    ]


def rows(found):
    for batch in found:
        for row in range(len(batch.images)):
            yield tf.nest.map_structure(lambda values, row=row: values[row], batch)


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return written(tmp_path_factory.mktemp("records"))


@pytest.mark.parametrize("mask_size", [CELLS, 0])
def test_boxes_and_masks_are_what_the_pixels_show(index, mask_size):
    full = {EACH * i + k: mask.sum() for i in range(COUNT) for k, mask in enumerate(drawn(i)[1])}
    pasted = shrunk = dropped = possible = 0
    for row in rows(batches(index, 40, config(mask_size=mask_size))):
        valid, seen = row.objects.valid, numbers_of(row.images)
        listed = row.objects.classes[valid]
        if len(set(listed)) < len(listed) or not set(listed // EACH) - {row.image_ids}:
            continue  # an image over itself, or nothing pasted
        for number, box, mask in zip(listed, row.objects.boxes[valid], row.objects.masks[valid], strict=True):
            visible = seen == number
            assert visible.sum() >= 0.05 * full[number]
            np.testing.assert_allclose(box, bounds(visible), atol=1e-4)
            if mask_size:
                y, x = (box[i] + (np.arange(CELLS) + 0.5) / CELLS * (box[i + 2] - box[i]) for i in (0, 1))
                inside = np.ix_(*(np.abs(places - np.rint(places)) > 1e-3 for places in (y, x)))  # of a pixel
                np.testing.assert_array_equal(mask[inside], visible[np.int64(y)[:, None], np.int64(x)][inside])
            shrunk += visible.sum() < full[number]
            if number // EACH != row.image_ids:
                assert visible.sum() == full[number]
                pasted += 1
        (further,) = set(listed // EACH) - {row.image_ids}
        possible += sum(full[EACH * further + number] > 0 for number in range(EACH))
        for number in set(range(EACH * row.image_ids, EACH * (row.image_ids + 1))) - set(listed):
            assert (seen == number).sum() < 0.05 * full[number] or full[number] == 0
            dropped += full[number] > 0
        assert row.sizes.tolist() == np.maximum(SHAPES[row.image_ids % 3], SHAPES[further % 3]).tolist()
        # What no image covers has the color of the padding after normalization.
        one = SHAPES[row.image_ids % 3]
        outside = np.ones((SIDE, SIDE), bool)
        outside[: one[0], : one[1]] = False
        outside[row.sizes[0] :], outside[:, row.sizes[1] :] = False, False
        rest = row.images[outside & (seen < 0)]
        assert (rest == PADDING).all()
    assert pasted > 100
    assert 0.4 < pasted / possible < 0.65
    assert shrunk > 30
    assert dropped > 3


def test_crowds_stay_where_they_are(tmp_path):
    crowds = set(range(0, COUNT * EACH, 2))
    index = written(tmp_path, crowds=crowds)
    pasted = set()
    for row in rows(batches(index, 20, config())):
        listed = row.objects.classes[row.objects.valid]
        pasted |= {number for number in listed.tolist() if number // EACH != row.image_ids}
    assert len(pasted) > 10
    assert not pasted & crowds


def test_the_sequence_is_the_same_from_any_step_and_on_any_number_of_ranks(index):
    inputs = config(copy_paste=CopyPaste(0.5))
    whole = batches(index, 6, inputs)
    later = batches(index, 3, replace(inputs, batch_size=2), first_position=3 * 4, rank=1, world_size=2)
    for one, part in zip(whole[3:], later, strict=True):
        second_half = tf.nest.map_structure(lambda values: values[2:], one)
        tf.nest.map_structure(np.testing.assert_array_equal, second_half, part)


def test_records_without_masks_are_one_line(tmp_path):
    index = written(tmp_path, masks=False)
    with pytest.raises(InputError, match=r"^\d\.png: image/object/mask holds no PNG; .* with --include_masks$"):
        batches(index, 3, config(mask_size=0))
