"""Images with their boxes as arrays, for analyses of complete data sets, and records as such.

Reads the boxes of records without the images, a hundred thousand records in seconds.
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dataset.class_names import ClassNames
from dataset.files.image_files import stored_size
from dataset.records.record_fields import record_fields
from dataset.records.record_index import RecordIndex, RecordReader
from program_support.errors import InputError

_SIDES = tuple(f"image/object/bbox/{side}".encode() for side in ("ymin", "xmin", "ymax", "xmax"))
_LABELS = b"image/object/class/label"
_CROWD, _DIFFICULT = b"image/object/is_crowd", b"image/object/difficult"
_HEIGHT, _WIDTH, _NAME, _ID = b"image/height", b"image/width", b"image/filename", b"image/source_id"
_DIGEST, _ENCODED = b"image/key/sha256", b"image/encoded"
_KEYS = frozenset((*_SIDES, _LABELS, _CROWD, _DIFFICULT, _HEIGHT, _WIDTH, _NAME, _ID, _DIGEST))


@dataclass(frozen=True, kw_only=True, eq=False)
class LabeledImages:
    """n images with N objects, grouped by image in ascending order."""

    class_names: ClassNames
    names: Sequence[str]  # n file names
    sizes: np.ndarray  # [n, 2] int32, height and width in pixels
    owners: np.ndarray  # [N] int32, the image of each object, 0 .. n-1
    boxes: np.ndarray  # [N, 4] float32 yxyx, pixels of the image
    classes: np.ndarray  # [N] int32, 0 .. K-1
    crowd: np.ndarray  # [N] bool, used neither in training, unless train_on_crowds, nor in evaluation
    difficult: np.ndarray  # [N] bool, not used in evaluation
    digests: Sequence[bytes]  # equal for equal files; empty if unknown
    encoded: Callable[[int], bytes]  # the file of an image by its number, from any thread; raises OSError or InputError
    left_out: Sequence[str] = ()  # unusable boxes, not among the N: file name and reason of each
    images_left_out: Sequence[str] = ()  # unusable images, not among the n: file name and reason of each

    def __len__(self) -> int:
        """Return n, the number of images."""
        return len(self.sizes)

    def objects_of(self, number: int) -> slice:
        """Return the slice of the objects of an image."""
        return slice(*np.searchsorted(self.owners, [number, number + 1]).tolist())

    def counts(self) -> np.ndarray:
        """Return the number of objects of each image, [n] int64."""
        return np.bincount(self.owners, minlength=len(self))

    def images_with(self) -> np.ndarray:
        """Return the number of images that contain each class, [K] int64."""
        count = len(self.class_names)
        pairs = np.unique(self.owners.astype(np.int64) * count + self.classes)
        return np.bincount(pairs % count, minlength=count)


def inside(boxes: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return boxes [N, 4] clipped to their images of `sizes` [N, 2], and which have an area left, [N] bool."""
    cut = np.clip(boxes, 0.0, np.tile(sizes, 2)).astype(np.float32)
    return cut, np.all(cut[:, 2:] > cut[:, :2], axis=1)


def labeled_records(index: RecordIndex, class_names: ClassNames, numbers: ArrayLike | None = None) -> LabeledImages:
    """Return the images of an index, or of these record numbers, ascending; checksums are not verified.

    Raises:
        InputError: with file, offset and image, for a record that is not an Example, has lists of unequal lengths
            or an unknown category id.
    """
    chosen = np.arange(len(index)) if numbers is None else np.asarray(numbers)
    names, sizes, digests, counts = [], [], [], []
    objects: list[tuple[np.ndarray, ...]] = []
    for number, buffer, start in record_places(index, chosen):
        try:
            fields = record_fields(buffer, start, start + int(index.lengths[number]), _KEYS)
            sizes.append(_size(fields, buffer, start, int(index.lengths[number])))
            objects.append(_objects(fields))
        except ValueError as error:
            place = f"{index.path(number)}: the record at byte {index.start(number)}"
            raise InputError(f"{place} {error}; convert again") from error
        names.append(b"".join(fields.get(_NAME) or fields.get(_ID) or [b""]).decode("utf-8", "replace"))
        digests.append(b"".join(fields.get(_DIGEST, ())))
        counts.append(len(objects[-1][0]))
    shares, labels, crowd, difficult = map(np.concatenate, zip(*objects, strict=True))
    image_sizes = np.array(sizes, np.int32).reshape(-1, 2)
    owners = np.repeat(np.arange(len(sizes), dtype=np.int32), counts)
    boxes, has_area = inside(shares * np.tile(image_sizes[owners], 2), image_sizes[owners])
    left_out = [f"{names[owner]}: box without area inside the image" for owner in owners[~has_area].tolist()]
    reader = RecordReader(index)
    return LabeledImages(
        class_names=class_names,
        names=names,
        sizes=image_sizes,
        owners=owners[has_area],
        boxes=boxes[has_area],
        classes=_classes(labels, class_names, index)[has_area],
        crowd=crowd[has_area],
        difficult=difficult[has_area],
        digests=digests,
        encoded=lambda number: _encoded(reader.read([chosen[number]])[0]),
        left_out=left_out,
    )


def record_places(index: RecordIndex, numbers: np.ndarray) -> Iterator[tuple[int, mmap.mmap, int]]:
    """Yield each record's number, its memory-mapped file, and its offset there."""
    for file_number in np.unique(index.file_numbers[numbers]):
        with (
            open(index.paths[file_number], "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer,
        ):
            buffer.madvise(mmap.MADV_RANDOM)  # otherwise the images in between would be read, too
            for number in numbers[index.file_numbers[numbers] == file_number].tolist():
                yield number, buffer, int(index.offsets[number])


def _size(fields: dict, buffer: mmap.mmap, start: int, length: int) -> tuple[int, int]:
    """Return height and width from the record, else from its image."""
    stated = [fields.get(key, ()) for key in (_HEIGHT, _WIDTH)]
    if all(len(values) == 1 and values[0] > 0 for values in stated):
        return int(stated[0][0]), int(stated[1][0])
    return stored_size(_encoded(bytes(buffer[start : start + length])))


def _encoded(payload: bytes) -> bytes:
    return b"".join(record_fields(payload, 0, len(payload), {_ENCODED}).get(_ENCODED, ()))


def _objects(fields: dict) -> tuple[np.ndarray, ...]:
    """Return boxes [N, 4] in fractions, category ids, crowd and difficult [N].

    Raises:
        ValueError: lengths differ.
    """
    sides = [np.asarray(fields.get(key, ()), np.float32) for key in _SIDES]
    labels = np.asarray(fields.get(_LABELS, ()), np.int64)
    flags = [np.asarray(fields.get(key, ()), np.int64) > 0 for key in (_CROWD, _DIFFICULT)]
    if {*map(len, sides)} != {len(labels)} or any(len(values) not in (0, len(labels)) for values in flags):
        raise ValueError("holds lists of unequal lengths")
    return (
        np.stack(sides, axis=-1),
        labels,
        *(values if len(values) else np.zeros(len(labels), bool) for values in flags),
    )


def _classes(labels: np.ndarray, class_names: ClassNames, index: RecordIndex) -> np.ndarray:
    """Map category ids [N] to class indices 0 .. K-1."""
    known = np.array(class_names.category_ids)
    classes = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    if unknown := sorted({*labels[known[classes] != labels].tolist()}):
        raise InputError(
            f"{index.paths[0]}: the records have unknown category ids {unknown[:8]}; the categories are "
            f"{class_names.category_ids}"
        )
    return classes.astype(np.int32)
