"""Images with their boxes as arrays, for analyses of complete data sets, and records as such.

Reads the boxes of records without the images, a hundred thousand records in seconds.

Records of TensorFlow's Object Detection API, and of Roboflow, name the class of each object in
image/object/class/text; a label map (.pbtxt) often lies beside them. Their image ids may be text.
"""

import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import ArrayLike

from dataset.class_names import ClassNames, class_file_of, read_class_file
from dataset.files.image_files import stored_size
from dataset.records.record_fields import record_fields
from dataset.records.record_index import RecordIndex, RecordReader, index_records
from program_support.errors import InputError

_SIDES = tuple(f"image/object/bbox/{side}".encode() for side in ("ymin", "xmin", "ymax", "xmax"))
_TEXT, _LABELS = b"image/object/class/text", b"image/object/class/label"
_CROWD, _DIFFICULT = b"image/object/is_crowd", b"image/object/difficult"
_HEIGHT, _WIDTH, _NAME, _ID = b"image/height", b"image/width", b"image/filename", b"image/source_id"
_DIGEST, _ENCODED = b"image/key/sha256", b"image/encoded"
NUMERIC_ID = r"[0-9]{1,18}"
_RECORDS_COMPARED = 100  # of a file, with the class names beside it
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


def label_map_beside(paths: Sequence[str]) -> ClassNames | None:
    """Return the classes of the label map (.pbtxt) in the folders of records, or in the folder above; None without one.

    Raises:
        InputError: for an invalid one and for several with different classes.
    """
    folders = sorted({Path(path).parent for path in paths})
    for places in (folders, sorted({folder.parent for folder in folders})):
        by_file = {path: read_class_file(path) for place in places for path in sorted(place.glob("*.pbtxt"))}
        if len({*by_file.values()}) > 1:
            raise InputError(f"{', '.join(map(str, by_file))}: name different classes; expected one label map")
        if by_file:
            return next(iter(by_file.values()))
    return None


def require_names_beside(paths: Sequence[str], class_names: ClassNames) -> None:
    """Raise InputError if the first file of a prefix names a class otherwise than the file beside the records.

    It is of another conversion, as after a copy, or beside other records only.
    """
    of_id = class_names.by_id()
    for class_file, path in {class_file_of(path): path for path in reversed(paths)}.items():
        named = classes_in_records([path], most=_RECORDS_COMPARED)
        for number, name in named.by_id().items() if named else ():
            if of_id.get(number, name) != name:
                raise InputError(
                    f"{path}: class {number} is {name} in its records, and {of_id[number]} in the file of class names; "
                    f"expected {class_file} of the same conversion; copy it with the records, or convert again"
                )


def classes_in_records(paths: Sequence[str], *, most: int | None = None) -> ClassNames | None:
    """Return the classes that the objects of the first `most` records name; None if none do or they cannot be read.

    Raises:
        InputError: for an id with two names.
    """
    try:
        index, names = index_records(paths), dict[int, str]()
    except InputError:
        return None  # reported by the reader
    for number, buffer, start in record_places(index, np.arange(len(index))[:most]):
        try:
            fields = record_fields(buffer, start, start + int(index.lengths[number]), {_TEXT, _LABELS})
        except ValueError:
            continue  # reported by the reader, with the place
        texts, labels = fields.get(_TEXT, []), np.asarray(fields.get(_LABELS, []), np.int64).tolist()
        if len(texts) != len(labels):
            continue
        for label, text in {*zip(labels, texts, strict=True)}:
            name = text.decode("utf-8", "replace").strip()
            if names.setdefault(label, name) != name:
                raise InputError(
                    f"{index.path(number)}: class {label} is named {names[label]} in one record and {name} in another"
                )
    return ClassNames.from_pairs(names.items()) if names else None


def image_names_of_text_ids(index: RecordIndex) -> list[tuple[str, bytes]]:
    """Return file name and text of the id of each record, or nothing if the ids are numbers.

    An empty id is replaced by the encoded image, as in `parse_record`.
    """
    names: list[tuple[str, bytes]] = []
    for number, buffer, start in record_places(index, np.arange(len(index))):
        fields = record_fields(buffer, start, start + int(index.lengths[number]), {_NAME, _ID, _ENCODED})
        text = b"".join(fields.get(_ID, ()))
        if not names and re.fullmatch(NUMERIC_ID.encode(), text):
            return []
        name = (b"".join(fields.get(_NAME, ())) or text).decode("utf-8", "replace")
        names.append((PurePosixPath(name).name, text or b"".join(fields.get(_ENCODED, ()))))
    return names
