"""Inspect one record for defects, without decoding its image.

As in conversion (see the tables in README.md), a record without usable content can be skipped, while a contradictory
record is an error.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError

from dataset.files import image_decoding

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
            image_decoding.decode_image(images[0])
        except tf.errors.OpError:
            return "an image that cannot be decoded"
    return "" if any(side in features for side in _SIDES) else NO_BOX_KEYS


def _has_area_inside(y_min: float, x_min: float, y_max: float, x_max: float) -> bool:
    return min(y_max, 1.0) > max(y_min, 0.0) and min(x_max, 1.0) > max(x_min, 0.0)
