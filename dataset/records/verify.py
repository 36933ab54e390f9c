"""Verify records before the first training step: complete, undamaged, and with objects.

`index_records` always reads the framing (lengths that add up to the end of the file). The verification reads every
byte: the checksum of each record, and the description of its image and objects. No image is decoded.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from dataset.files.untrusted_values import allowing_fraction
from dataset.records.record_index import RecordIndex, RecordReader, require_unchanged
from dataset.records.schema import decode_image
from program_support.errors import InputError

NO_BOX_KEYS = "no box keys (image/object/bbox/..)"
_SIDES = tuple(f"image/object/bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))
_LABELS = "image/object/class/label"
_OPTIONAL = ("image/object/is_crowd", "image/object/difficult", "image/object/mask")  # absent, or one value per object
_SINGLE = ("image/source_id", "image/filename")
_KINDS = {
    "image/encoded": "bytes_list",
    **dict.fromkeys(_SINGLE, "bytes_list"),
    **dict.fromkeys(_SIDES, "float_list"),
    _LABELS: "int64_list",
    "image/object/is_crowd": "int64_list",
    "image/object/difficult": "int64_list",
    "image/object/mask": "bytes_list",
    "image/object/area": "float_list",
}
# First bytes of JPEG, PNG and WebP; other formats are passed to the decoder.
_COMMON_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF")

Features = Mapping[str, tf.train.Feature]
Box = tuple[float, float, float, float]  # y_min, x_min, y_max, x_max as fractions of the image


class Inspection(NamedTuple):
    """Result of an inspection; `useless` and `contradiction` complete "the record holds ..." and are empty if sound."""

    name: str  # the image's, read from the record
    useless: str = ""
    contradiction: str = ""
    boxes: int = 0
    boxes_outside: int = 0  # no area inside the image: training ignores them


def inspect_record(payload: bytes, *, category_ids: Collection[int] | None = None) -> Inspection:
    """Inspect one record; `category_ids` are the allowed ids (None: any)."""
    try:
        features = dict(tf.train.Example.FromString(payload).features.feature)
    except DecodeError:
        return Inspection(name="no name", useless="no tf.train.Example")
    name, useless = _name(features), ""
    contradiction = _contradicting_kinds(features) or _contradicting_counts(features)
    if not contradiction:
        boxes = list(zip(*(_values(features, side) for side in _SIDES), strict=True))
        contradiction = _contradicting_objects(boxes, _values(features, _LABELS), category_ids)
        useless = _useless(features)
    if contradiction or useless:
        return Inspection(name=name, useless=useless, contradiction=contradiction)
    return Inspection(name=name, boxes=len(boxes), boxes_outside=sum(not _has_area_inside(*box) for box in boxes))


def _values(features: Features, key: str) -> Sequence[Any]:
    """Return the values of the expected kind; empty if the key is absent."""
    return getattr(features[key], _KINDS[key]).value if key in features else ()


def _name(features: Features) -> str:
    file_name, image_id = (
        b"".join(_values(features, key)[:1]).decode("utf-8", "replace") for key in ("image/filename", "image/source_id")
    )
    image = f"image {image_id}" if image_id else ""
    return f"{file_name}, {image}" if file_name and image else file_name or image or "no name"


def _contradicting_kinds(features: Features) -> str:
    for key, expected in _KINDS.items():
        kind = features[key].WhichOneof("kind") if key in features else None
        if kind not in (None, expected):
            return f"a {kind} in {key}, expected a {expected}"
        if kind and key in _SINGLE and len(_values(features, key)) != 1:
            return f"{len(_values(features, key))} values in {key}, expected one"
    return ""


def _contradicting_counts(features: Features) -> str:
    counts = {key: len(_values(features, key)) for key in (*_SIDES, _LABELS, *_OPTIONAL)}
    objects = counts[_LABELS]
    if all(count == objects or (count == 0 and key in _OPTIONAL) for key, count in counts.items()):
        return ""
    counts = {key: count for key, count in counts.items() if count or key not in _OPTIONAL[1:]}  # the usual case
    shown = ", ".join(f"{count} {key.rsplit('/', 1)[1]}" for key, count in counts.items())
    return f"lists of unequal lengths ({shown})"


def _contradicting_objects(boxes: list[Box], labels: Sequence[int], category_ids: Collection[int] | None) -> str:
    broken = next((box for box in boxes if not all(map(math.isfinite, box))), None)
    if broken:
        numbers = ", ".join(f"{value:g}" for value in broken)
        return f"a box that is not four finite numbers (ymin, xmin, ymax, xmax: {numbers})"
    if category_ids is None or not (unknown := sorted({*labels}.difference(category_ids))):
        return ""
    return f"unknown category ids {unknown}, the categories are {sorted(category_ids)}"


def _useless(features: Features) -> str:
    images = _values(features, "image/encoded")
    if len(images) != 1 or not images[0]:
        return "no image (image/encoded)"
    if not images[0].startswith(_COMMON_IMAGES):
        try:
            decode_image(images[0])
        except tf.errors.OpError:
            return "an image that cannot be decoded"
    return "" if any(side in features for side in _SIDES) else NO_BOX_KEYS


def _has_area_inside(y_min: float, x_min: float, y_max: float, x_max: float) -> bool:
    return min(y_max, 1.0) > max(y_min, 0.0) and min(x_max, 1.0) > max(x_min, 0.0)


# Six seconds on one core at 2.5 GHz, from memory: 600 MB of checksums per second, 14,000 inspected records per second.
AUTO_BYTES = 2**30
AUTO_RECORDS = 50_000
_NAMED = 3


def verify_records(
    index: RecordIndex,
    *,
    when: str,
    max_bad_fraction: float,
    log: Callable[[str], None],
    category_ids: Collection[int] | None = None,
) -> RecordIndex:
    """Return the index without unusable records; an image with an empty list of boxes is valid.

    `when`: "auto" verifies all records up to AUTO_BYTES and AUTO_RECORDS and nothing of larger data sets, "always"
    verifies any amount, "never" nothing. `index` is complete, as `index_records` returns it.

    Raises:
        InputError: with file, offset and image, for a record with a checksum mismatch or a contradiction (lists of
            unequal lengths, boxes that are not numbers, ids not in `category_ids`); if more than `max_bad_fraction`
            of the records or of the boxes are unusable; and if there are no boxes.
    """
    if _is_due(index, when):
        tally = _Tally(index)
        reader = RecordReader(index)
        for number in range(len(index)):
            tally.add(number, *reader.read([number]), category_ids=category_ids)
        require_unchanged(index)
        tally.check_fractions(max_bad_fraction=max_bad_fraction)
        tally.require_boxes()
        tally.warn(log)
        useless = [number for numbers in tally.useless.values() for number in numbers]
        return index.only(~np.isin(np.arange(len(index)), useless)) if useless else index
    if when == "auto":
        log(f"{index.lengths.sum() / 1e9:.1f} GB of records are not verified; --verify_records=always does it")
    return index


def _is_due(index: RecordIndex, when: str) -> bool:
    small = int(index.lengths.sum()) <= AUTO_BYTES and len(index) <= AUTO_RECORDS
    return when == "always" or (when == "auto" and small)


@dataclass
class _Tally:
    """Counts over the inspected records; `useless` has the record numbers for each reason."""

    index: RecordIndex
    records: int = 0
    boxes: int = 0
    boxes_outside: list[int] = field(default_factory=list)  # the record of each
    useless: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    names: dict[int, str] = field(default_factory=dict)  # only those of records that messages may mention

    def add(self, number: int, payload: bytes, *, category_ids: Collection[int] | None) -> None:
        """Add a record.

        Raises:
            InputError: it is contradictory.
        """
        inspection = inspect_record(payload, category_ids=category_ids)
        if inspection.contradiction:
            raise InputError(
                f"{self.index.path(number)}: the record at byte {self.index.start(number)} ({inspection.name}) "
                f"holds {inspection.contradiction}; convert again"
            )
        self.records += 1
        self.boxes += inspection.boxes
        if inspection.useless:
            self.useless[inspection.useless].append(number)
            self.names[number] = inspection.name
        if inspection.boxes_outside:
            self.boxes_outside += [number] * inspection.boxes_outside
            self.names[number] = inspection.name

    def check_fractions(self, *, max_bad_fraction: float) -> None:
        """Raise InputError if too many records or boxes are unusable."""
        bad, outside = sum(map(len, self.useless.values())), len(self.boxes_outside)
        needed = max(allowing_fraction(bad, self.records), allowing_fraction(outside, self.boxes), key=float)
        if bad > max_bad_fraction * self.records or bad == self.records:
            raise InputError(
                f"{self._useless_records()}: {bad / self.records:.2%} of the records; expected at most "
                f"{max_bad_fraction:.2%}; {self._advice(bad, needed)}"
            )
        if outside > max_bad_fraction * self.boxes:
            raise InputError(
                f"{self._useless_boxes()}: {outside / self.boxes:.2%}; expected at most {max_bad_fraction:.2%}, "
                "in fractions of the image (not pixels, minimum before maximum); to accept this, set "
                f"--max_bad_fraction={needed}"
            )

    def require_boxes(self) -> None:
        """Raise InputError if there are no boxes."""
        if not self.boxes:
            raise InputError(
                f"{self.index.paths[0]}: no boxes in {self.records} records; expected records with object "
                "annotations (--verify_records=never trains without boxes)"
            )

    def warn(self, log: Callable[[str], None]) -> None:
        if self.useless:
            log(f"warning: {self._useless_records()}; skipped")
        if self.boxes_outside:
            log(f"warning: {self._useless_boxes()}; training ignores them")

    def _advice(self, bad: int, needed: str) -> str:
        keep = (
            "if they are images without objects, --verify_records=never keeps them as such"
            if NO_BOX_KEYS in self.useless
            else "convert again"
        )
        if bad == self.records:
            return f"were they made without annotations? {keep}"
        return f"{keep}; --max_bad_fraction={needed} leaves them out"

    def _useless_records(self) -> str:
        return "; ".join(
            f"{len(numbers)} of {self.records} records hold {reason}: {self._places(numbers)}"
            for reason, numbers in self.useless.items()
        )

    def _useless_boxes(self) -> str:
        return (
            f"{len(self.boxes_outside)} of {self.boxes} boxes have no area inside their image: "
            f"{self._places(sorted(set(self.boxes_outside)))}"
        )

    def _places(self, numbers: list[int]) -> str:
        shown = [
            f"{self.names[number]} (byte {self.index.start(number)} of {self.index.path(number)})"
            for number in numbers[:_NAMED]
        ]
        return ", ".join(shown) + (f" and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else "")
