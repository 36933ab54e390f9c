"""Read COCO annotation files, and reject files that would silently train on wrong data.

Format: https://cocodataset.org/#format-data. Boxes are (x, y, width, height) in pixels of the stored image.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    ReportEntry,
    box_around,
    box_around_rotated,
    checked_file_name,
)
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.segmentation import (
    UnusableSegmentation,
    check_segmentation,
    validated_run_lengths,
)
from dataset.files.bounded_files import read_json
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.untrusted_values import (
    LARGEST_ID,
    error_context,
    finite_number,
    is_set,
    listed,
    number_of_text,
    shown,
    storable_text,
    whole_number,
)
from object_detection.coco.run_length_masks import decoded
from program_support.errors import InputError

Box = tuple[float, float, float, float]  # x, y, width, height


class _Ids:
    """Ids of images or categories as integers: digits in text are numbers; if an id is other text, all are counted."""

    def __init__(self, values: Iterable[Any], *, least: int):
        values = [*values]
        keys = [*map(_key, values)]
        self._has_digits = any(isinstance(value, str) for value in values)
        texts = any(isinstance(key, str) for key in keys)
        self._numbers = {key: number for number, key in enumerate(dict.fromkeys(keys), start=1)} if texts else None
        self._least = least

    @property
    def note(self) -> str | None:
        """Return how ids that are text were read, if any are."""
        if self._numbers is not None:
            return "are text: counted 1, 2, ..."
        return "are numbers written as text" if self._has_digits else None

    def of(self, value: Any, name: str) -> int:
        """Return the integer of an id; -1 - `LARGEST_ID` for a text that no entry has."""
        key = _key(value)
        if self._numbers is None or not isinstance(key, (int, str)) or isinstance(key, bool):
            return whole_number(number_of_text(value), name, least=self._least)
        return self._numbers.get(key, -1 - LARGEST_ID)


def _key(value: Any) -> Hashable:
    """Return an id as it is compared: 1, 1.0 and "1" are the same."""
    value = number_of_text(value)
    if type(value) is float and value.is_integer():
        return int(value)
    return value if isinstance(value, Hashable) else None


def read_coco_file(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read a file of boxes, whose images are in a folder, of a `split` if folders name splits."""
    named = functools.partial(images.named, split=split, label_file=path)
    return read_coco(object_annotations_file=path, with_segmentation=with_masks, file_name=named)


def read_coco(
    *,
    object_annotations_file: str = "",
    image_info_file: str = "",
    caption_annotations_file: str = "",
    with_segmentation: bool = False,
    file_name: Callable[[Any], str] = checked_file_name,
) -> AnnotatedDataSet:
    """Read a COCO data set.

    Images come from `image_info_file` if given, else from the object annotations. `file_name` maps the annotated name
    to a name inside the image folder. Invalid images and annotations are skipped.

    Raises:
        InputError: the file has another format, invalid categories, or object annotations without boxes.
    """
    if caption_annotations_file and not object_annotations_file:
        raise InputError(
            f"{caption_annotations_file}: captions alone hold no boxes; "
            "also give --object_annotations_file (instances_*.json)"
        )
    if not object_annotations_file and not image_info_file:
        raise InputError("give --object_annotations_file, or --image_info_file alone for images without annotations")
    image_source = image_info_file or object_annotations_file
    labels = LabelCollector(source=object_annotations_file or image_source)
    files = {
        path: _read_data_set(path, labels)
        for path in dict.fromkeys((image_source, object_annotations_file, caption_annotations_file))
        if path
    }
    image_ids = _add_images(files[image_source], image_source, file_name, labels)
    _note_odd_images(labels)
    class_names, category_ids = _read_categories(
        files[labels.source], labels.source, required=bool(object_annotations_file)
    )
    for ids, what in ((image_ids, "image"), (category_ids, "category")):
        if ids.note:
            labels.note(f"{what} ids {ids.note}")
    by_id = {image.image_id: image for image in labels.images}
    if class_names and object_annotations_file:
        annotations = _boxed_annotations(files[object_annotations_file], object_annotations_file)
        known = frozenset(class_names.category_ids)
        for index, entry in enumerate(annotations):
            _add_object(
                entry,
                index,
                labels,
                by_id,
                ids=(image_ids, category_ids),
                known=known,
                with_segmentation=with_segmentation,
            )
        if scored := sum("score" in entry for entry in annotations):
            reason = f"{scored} of {len(annotations)} annotations have a score, as detections do: taken as labels"
            labels.note(reason, kind="box")
    if caption_annotations_file:
        _add_captions(files[caption_annotations_file], labels, by_id, image_ids, path=caption_annotations_file)
    return labels.data_set(class_names)


def _read_data_set(path: str, labels: LabelCollector) -> dict:
    content = read_json(path, hasher=labels.hasher)
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: is not a COCO data set: found a {type(content).__name__} at the top, expected an object "
            "with images, annotations and categories (a list is a file of results)"
        )
    return content


def _entries(content: dict, key: str, *, path: str) -> list[dict]:
    """Return a list of objects; an entry that is none becomes an empty object, which lacks what is needed."""
    entries = content.get(key)
    if not isinstance(entries, list):
        kind = "missing" if entries is None else f"a {type(entries).__name__}"
        raise InputError(f"{path}: is not a COCO data set: {key!r} is {kind}, expected a list")
    return [entry if isinstance(entry, dict) else {} for entry in entries]


def _add_images(content: dict, path: str, file_name: Callable[[Any], str], labels: LabelCollector) -> _Ids:
    entries = _entries(content, "images", path=path)
    if not entries:
        raise InputError(f"{path}: lists no images")
    ids = _Ids((entry.get("id") for entry in entries), least=0)
    names_of: dict[int, str] = {}
    ambiguous = set()
    for index, entry in enumerate(entries):
        with labels.skipping(f"images[{index}]", file=path):
            image_id = ids.of(entry.get("id"), "id")
            with error_context(f"of id {image_id}:"):
                name = file_name(_name(entry, labels))
                if image_id in names_of:
                    ambiguous.add(image_id)
                    raise InputError(
                        f"image id {image_id} is given twice, to {shown(names_of[image_id])} and {shown(name)}"
                    )
                image = AnnotatedImage(image_id=image_id, file_name=name, size=_image_size(entry))
                names_of[image_id] = name
                labels.images.append(image)
    labels.images = [image for image in labels.images if image.image_id not in ambiguous]
    labels.skipped += [
        ReportEntry(
            kind="image",
            file=names_of[image_id],
            image_id=image_id,
            reason="its id is that of another image: its boxes are unknown",
        )
        for image_id in sorted(ambiguous)
    ]
    return ids


def _note_odd_images(labels: LabelCollector) -> None:
    times = Counter(image.file_name for image in labels.images)
    for image in labels.images:
        name = image.file_name
        if times[name] > 1:
            labels.note(f"{times[name]} image ids share this file", file=name, image_id=image.image_id)
        if image.size is None:
            reason = "the annotation file has no size: taken from the image"
            labels.note(reason, file=name, image_id=image.image_id)


def _name(entry: dict, labels: LabelCollector) -> Any:
    """Return the file name of an image; LVIS has only the address at which COCO publishes it."""
    if not (name := entry.get("file_name")) and isinstance(address := entry.get("coco_url"), str):
        labels.notes["images have no file_name: the last part of coco_url is used"] += 1
        return address.rpartition("/")[2]
    return name


def _image_size(entry: dict) -> tuple[int, int] | None:
    """Return (height, width), or None if the file lacks one; tools write 0 or NaN for an unknown size."""
    height, width = number_of_text(entry.get("height")), number_of_text(entry.get("width"))
    if any(side in (None, 0, "") or side != side for side in (height, width)):
        return None
    return whole_number(height, "height", least=1), whole_number(width, "width", least=1)


def _read_categories(content: dict, path: str, *, required: bool) -> tuple[ClassNames | None, _Ids]:
    if not required and not content.get("categories"):
        return None, _Ids((), least=-LARGEST_ID)
    entries = _entries(content, "categories", path=path)
    ids = _Ids((entry.get("id") for entry in entries), least=-LARGEST_ID)
    for index, entry in enumerate(entries):
        with error_context(f"{path}: categories[{index}]"):
            entry["id"] = ids.of(entry.get("id"), "id")
    categories = _without_groups(entries, ids, content.get("annotations"))
    if not categories:
        raise InputError(f"{path}: lists no categories; expected every category id of its annotations")
    with error_context(f"{path}:"):
        return ClassNames.from_categories(categories), ids


def _without_groups(categories: list[dict], ids: _Ids, annotations: Any) -> list[dict]:
    """Return the categories without Roboflow's group of all classes.

    The group is a category that no annotation uses and whose name is that of a used category or the supercategory of
    all others.
    """
    entries = annotations if isinstance(annotations, list) else []
    used_ids = set()
    for key in {_key(entry.get("category_id")) for entry in entries if isinstance(entry, dict)}:
        with contextlib.suppress(InputError):
            used_ids.add(ids.of(key, "id"))
    used = [entry for entry in categories if entry["id"] in used_ids]
    names = [entry.get("name") for entry in used]
    return [
        entry
        for entry in categories
        if entry in used or not (entry.get("name") in names or _is_above_all_others(entry, categories))
    ]


def _is_above_all_others(entry: dict, categories: list[dict]) -> bool:
    return (
        isinstance(entry.get("name"), str)
        and len(categories) > 1
        and all(other is entry or other.get("supercategory") == entry["name"] for other in categories)
    )


def _boxed_annotations(content: dict, path: str) -> list[dict]:
    """Return the annotations.

    Raises:
        InputError: none has a box or an outline.
    """
    advice = "(expected instances_*.json; for images without annotations use create_coco_tfrecord.py --image_info_file)"
    if content.get("annotations") is None:
        raise InputError(f"{path}: has no annotations {advice}")
    annotations = _entries(content, "annotations", path=path)
    if not any(entry.get("bbox") is not None or entry.get("segmentation") for entry in annotations):
        what = "captions" if any("caption" in entry for entry in annotations) else "annotations"
        raise InputError(f"{path}: none of its {len(annotations)} {what} has a box {advice}")
    return annotations


def _add_object(
    entry: dict,
    index: int,
    labels: LabelCollector,
    by_id: dict[int, AnnotatedImage],
    *,
    ids: tuple[_Ids, _Ids],
    known: frozenset[int],
    with_segmentation: bool,
) -> None:
    """Add an annotation to its image; skip one of an unlisted image, with an invalid box or with an invalid mask."""
    image, image_id, annotation_id = None, None, _key(entry.get("id"))
    try:
        with error_context(f"annotations[{index}]" if type(annotation_id) is not int else ""):
            image_id = ids[0].of(entry.get("image_id"), "image_id")
            image = by_id.get(image_id)
            if image is None:
                raise InputError("annotation of an image that is not listed")
            category_id = ids[1].of(entry.get("category_id"), "category_id")
            if category_id not in known:
                raise InputError(
                    f"has category {shown(entry.get('category_id'))}; the categories are {listed(sorted(known))}"
                )
            annotation = _object(entry, category_id, with_segmentation=with_segmentation, notes=labels.notes)
            image.objects.append(annotation)
    except InputError as error:
        if image is not None:
            image.refused += 1
        labels.skipped.append(
            ReportEntry(
                kind="box",
                file=labels.source,
                image_id=image_id if image_id is not None and image_id >= 0 else None,
                annotation_id=annotation_id if type(annotation_id) is int else None,
                reason=str(error).strip(),
            )
        )


def _object(entry: dict, category_id: int, *, with_segmentation: bool, notes: Counter[str]) -> AnnotatedObject:
    """Return the object of an annotation; `notes` counts what tools leave out or write otherwise."""
    outline = _segmentation(entry)
    box = _box(entry, outline, notes)
    if with_segmentation and not outline:
        raise InputError("has no segmentation, which --include_masks needs")
    if with_segmentation:
        check_segmentation(outline)  # deep lists could not be sent to a process
    if is_set(entry.get("ignore"), "ignore"):
        notes["objects with ignore 1 are used like others, as in pycocotools: only iscrowd 1 is ignored"] += 1
    if any(isinstance(entry.get(name), str) for name in ("id", "image_id", "category_id", "iscrowd", "ignore", "area")):
        notes["annotations have numbers written as text"] += 1
    annotation_id, area = number_of_text(entry.get("id")), number_of_text(entry.get("area"))
    return AnnotatedObject(
        annotation_id=None
        if annotation_id is None or isinstance(annotation_id, str)
        else whole_number(annotation_id, "id"),
        category_id=category_id,
        box_xywh=box,
        area=None if area in (None, "") else finite_number(area, "area"),
        is_crowd=is_set(entry.get("iscrowd"), "iscrowd"),
        is_difficult=is_set(entry.get("difficult"), "difficult"),
        segmentation=outline if with_segmentation else None,
    )


def _segmentation(entry: dict) -> Any:
    """Return polygons or run lengths; VIA writes the only polygon without its list."""
    outline = entry.get("segmentation")
    if isinstance(outline, list) and outline and all(type(value) in (int, float) for value in outline):
        return [outline]
    return outline


def _box(entry: dict, outline: Any, notes: Counter[str]) -> Box:
    """Return the box: as it is, around a rotated one, or around the outline if it is missing or empty."""
    values = entry.get("bbox")
    if values is None or values == []:
        if not outline:
            raise InputError("has neither a bbox nor a segmentation")
        notes["objects without a bbox got the box around their outline"] += 1
        return _box_around_outline(outline)
    if not isinstance(values, list) or len(values) not in (4, 5):
        raise InputError(f"has bbox {shown(values)}, expected 4 numbers (x, y, width, height)")
    if any(isinstance(value, str) for value in values):
        notes["boxes have numbers written as text"] += 1
    numbers = [finite_number(number_of_text(value), "in its bbox") for value in values]
    if len(numbers) == 5:  # Detectron2's BoxMode.XYWHA_ABS
        x, y, width, height, degrees = numbers
        numbers, is_plain = [x - width / 2, y - height / 2, width, height], True
    else:
        degrees, is_plain = _degrees(entry), not outline or _is_rectangle(outline, numbers)
    box = (numbers[0], numbers[1], numbers[2], numbers[3])
    if degrees and is_plain:
        notes[ROTATED] += 1
        return box_around_rotated(box, degrees)
    return box


def _degrees(entry: dict) -> float:
    """Return the rotation of a box, which CVAT writes as an attribute; 0 without one."""
    attributes = entry.get("attributes")
    if isinstance(attributes, list):
        pairs = [one for one in attributes if isinstance(one, dict) and isinstance(one.get("name"), str)]
        attributes = {one["name"]: one.get("value") for one in pairs}
    for place in (attributes if isinstance(attributes, dict) else {}, entry):
        for name in ("rotation", "angle"):
            if place.get(name) not in (None, ""):
                return finite_number(number_of_text(place[name]), name)
    return 0.0


def _is_rectangle(outline: Any, box: list[float]) -> bool:
    """Return whether an outline is the unrotated box itself, which says nothing about a rotation."""
    x, y, width, height = box
    corners = {(x, y), (x + width, y), (x + width, y + height), (x, y + height)}
    polygon = outline[0] if isinstance(outline, list) and len(outline) == 1 else None
    if not isinstance(polygon, list) or any(type(value) not in (int, float) for value in polygon):
        return False
    return {*zip(polygon[::2], polygon[1::2], strict=False)} <= corners


def _box_around_outline(outline: Any) -> Box:
    try:
        check_segmentation(outline)
        if isinstance(outline, list):
            return box_around([float(value) for polygon in outline for value in polygon])
        height, width = (whole_number(side, "size", least=1) for side in outline["size"])
        if height * width > LARGEST_IMAGE_PIXELS:
            raise InputError(f"has a segmentation of {width}x{height} pixels; the limit is {LARGEST_IMAGE_PIXELS}")
        rows, columns = np.nonzero(decoded(validated_run_lengths(outline, (height, width))))
    except UnusableSegmentation as error:
        raise InputError(f"has no bbox, and {error}") from error
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    left, top = float(columns.min()), float(rows.min())
    return left, top, float(columns.max()) + 1 - left, float(rows.max()) + 1 - top


def _add_captions(
    content: dict, labels: LabelCollector, by_id: dict[int, AnnotatedImage], ids: _Ids, *, path: str
) -> None:
    for index, entry in enumerate(_entries(content, "annotations", path=path)):
        with error_context(f"{path}: annotations[{index}]"):
            image_id = ids.of(entry.get("image_id"), "image_id")
            with error_context(f"of image {image_id}"):
                caption = storable_text(entry.get("caption"), "caption")
        if image_id in by_id:
            by_id[image_id].captions.append(caption)
        else:
            labels.note("caption of an unknown image", file=path, kind="caption", image_id=image_id)
