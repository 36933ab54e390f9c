"""Data sets in memory, drawn without faults, and functions that plant faults in them."""

import io
from dataclasses import replace

import numpy as np
from PIL import Image, ImageFilter

from dataset.class_names import ClassNames
from dataset.records.labeled_records import LabeledImages

NAMES = ("cat", "dog", "fox")


def healthy(count=12, *, seed=0, names=NAMES, size=(128, 128)):
    """Square images, different ones, with an object of each class, as large as anchors are."""
    random = np.random.default_rng(seed)
    pictures = [picture(random, size) for _ in range(count)]
    corners = random.uniform(0, 20, (count, len(names), 2)) + np.array([[0, 0], [50, 5], [10, 60]])[: len(names)]
    boxes = np.concatenate([corners, corners + random.uniform(38, 46, corners.shape)], axis=-1).reshape(-1, 4)
    return LabeledImages(
        class_names=ClassNames(tuple(range(1, len(names) + 1)), names),
        names=[f"{seed}-{n}.jpg" for n in range(count)],
        sizes=np.tile(np.int32(size), (count, 1)),
        owners=np.repeat(np.arange(count, dtype=np.int32), len(names)),
        boxes=boxes.astype(np.float32),
        classes=np.tile(np.arange(len(names), dtype=np.int32), count),
        crowd=np.zeros(count * len(names), bool),
        difficult=np.zeros(count * len(names), bool),
        digests=[b""] * count,
        encoded=pictures.__getitem__,
    )


def picture(random, size=(128, 128), **changes):
    """A JPEG of soft spots."""
    spots = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize(
        size[::-1], Image.Resampling.BICUBIC
    )
    return jpeg(spots.filter(ImageFilter.GaussianBlur(2)), **changes)


def jpeg(image, *, quality=90):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()


def with_pictures(images, changed):
    """Other files for some images: {number: bytes}."""
    return replace(images, encoded=lambda number: changed.get(number) or images.encoded(number))


def with_boxes(images, number, boxes, *, label=0, crowd=False):
    """Some more objects in one image."""
    boxes = np.reshape(np.float32(boxes), (-1, 4))
    owners = np.concatenate([images.owners, np.full(len(boxes), number, np.int32)])
    order = np.argsort(owners, kind="stable")
    return replace(
        images,
        owners=owners[order],
        boxes=np.concatenate([images.boxes, boxes])[order],
        classes=np.concatenate([images.classes, np.full(len(boxes), label, np.int32)])[order],
        crowd=np.concatenate([images.crowd, np.full(len(boxes), crowd)])[order],
        difficult=np.concatenate([images.difficult, np.zeros(len(boxes), bool)])[order],
    )


def without_objects_of(images, *, number=None, label=None):
    """Without the objects of an image, or of a class."""
    kept = (images.owners != number) if label is None else (images.classes != label)
    return replace(
        images,
        owners=images.owners[kept],
        boxes=images.boxes[kept],
        classes=images.classes[kept],
        crowd=images.crowd[kept],
        difficult=images.difficult[kept],
    )
