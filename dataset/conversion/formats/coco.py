"""Read COCO annotation files, and reject files that would silently train on wrong data.

Format: https://cocodataset.org/#format-data. Boxes are (x, y, width, height) in pixels of the stored image.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    Finding,
    checked_file_name,
)
from dataset.conversion.formats.coco_findings import odd_annotation_ids, odd_images
from dataset.conversion.segmentation import reason_to_skip
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import (
    LARGEST_ID,
    error_context,
    finite_number,
    listed,
    shown,
    storable_text,
    whole_number,
)
from program_support.errors import InputError


def read_coco(
    *,
    object_annotations_file: str = "",
    image_info_file: str = "",
    caption_annotations_file: str = "",
    with_segmentation: bool = False,
    file_name: Callable[..., str] = checked_file_name,
) -> AnnotatedDataSet:
    """Read a COCO data set.

    Images come from `image_info_file` if given, else from the object annotations. `file_name` maps the annotated name,
    and `where`, the start of its errors, to a name inside the image folder. Raises InputError, with file, id and value,
    for files of another format, for an invalid id, size or box, and for object annotations without boxes.
    """
    if caption_annotations_file and not object_annotations_file:
        raise InputError(
            f"{caption_annotations_file}: captions alone hold no boxes; "
            "also give --object_annotations_file (instances_*.json)"
        )
    if not object_annotations_file and not image_info_file:
        raise InputError("give --object_annotations_file, or --image_info_file alone for images without annotations")
    hasher = hashlib.sha256()
    image_source = image_info_file or object_annotations_file
    contents = {
        path: _read_data_set(path, hasher)
        for path in dict.fromkeys((image_source, object_annotations_file, caption_annotations_file))
        if path
    }
    images = _read_images(contents[image_source], image_source, file_name)
    by_id = {image.image_id: image for image in images}
    skipped, noted = [], list(odd_images(images))
    class_names = _read_categories(
        contents[object_annotations_file or image_source],
        object_annotations_file or image_source,
        required=bool(object_annotations_file),
    )
    listed_boxes = 0
    if object_annotations_file:
        assert class_names is not None  # `required`
        annotations = _boxed_annotations(contents[object_annotations_file], object_annotations_file)
        listed_boxes = len(annotations)
        skipped += _add_objects(
            annotations,
            by_id,
            path=object_annotations_file,
            class_names=class_names,
            with_segmentation=with_segmentation,
        )
        noted += odd_annotation_ids(annotations, object_annotations_file)
    if caption_annotations_file:
        noted += _add_captions(contents[caption_annotations_file], by_id, path=caption_annotations_file)
    return AnnotatedDataSet(
        source=object_annotations_file or image_info_file,
        images=images,
        class_names=class_names,
        fingerprint=hasher.hexdigest(),
        listed_boxes=listed_boxes,
        skipped=skipped,
        noted=noted,
    )


def _read_data_set(path: str, hasher: Any) -> dict:
    found = read_json(path, hasher=hasher)
    if not isinstance(found, dict):
        raise InputError(
            f"{path}: is not a COCO data set: found a {type(found).__name__} at the top, expected an object "
            "with images, annotations and categories (a list is a file of results)"
        )
    return found


def _list_of_objects(content: dict, key: str, *, path: str) -> list[dict]:
    found = content.get(key)
    if not isinstance(found, list):
        raise InputError(f"{path}: is not a COCO data set: {key!r} is {_kind(found)}, expected a list")
    for index, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise InputError(f"{path}: {key}[{index}] is {_kind(entry)}, expected an object")
    return found


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"


def _read_images(content: dict, path: str, file_name: Callable[..., str]) -> list[AnnotatedImage]:
    images: list[AnnotatedImage] = []
    seen: dict[int, str] = {}
    for index, entry in enumerate(_list_of_objects(content, "images", path=path)):
        with error_context(f"{path}: images[{index}]"):
            image_id = whole_number(entry.get("id"), "id")
        where = f"{path}: image {image_id}"
        name = file_name(entry.get("file_name"), where=where)
        if image_id in seen:
            raise InputError(
                f"{path}: image id {image_id} is given twice, to {shown(seen[image_id])} and {shown(name)}"
            )
        seen[image_id] = name
        with error_context(where):
            images.append(AnnotatedImage(image_id=image_id, file_name=name, size=_image_size(entry)))
    if not images:
        raise InputError(f"{path}: lists no images")
    return images


def _image_size(entry: dict) -> tuple[int, int] | None:
    """Return (height, width), or None if the file has neither."""
    if entry.get("height") is None and entry.get("width") is None:
        return None
    return whole_number(entry.get("height"), "height", least=1), whole_number(entry.get("width"), "width", least=1)


def _read_categories(content: dict, path: str, *, required: bool) -> ClassNames | None:
    if not required and not content.get("categories"):
        return None
    categories = _without_groups(_list_of_objects(content, "categories", path=path), content.get("annotations"))
    if not categories:
        raise InputError(f"{path}: lists no categories; expected every category id of its annotations")
    with error_context(f"{path}:"):
        return ClassNames.from_categories(categories)


def _without_groups(categories: list[dict], annotations: Any) -> list[dict]:
    """Return the categories without Roboflow's group of all classes.

    The group is a category that no annotation uses and whose name is that of a used category or the supercategory of
    all others.
    """
    entries = annotations if isinstance(annotations, list) else []
    used_ids = {one["category_id"] for one in entries if isinstance(one, dict) and type(one.get("category_id")) is int}
    used = [entry for entry in categories if type(entry.get("id")) is int and entry["id"] in used_ids]
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
    """Return the annotations. Raises InputError if none has a box."""
    advice = "(expected instances_*.json; for images without annotations use create_coco_tfrecord.py --image_info_file)"
    if content.get("annotations") is None:
        raise InputError(f"{path}: has no annotations {advice}")
    annotations = _list_of_objects(content, "annotations", path=path)
    if not any(entry.get("bbox") is not None for entry in annotations):
        what = "captions" if any("caption" in entry for entry in annotations) else "annotations"
        raise InputError(f"{path}: holds {len(annotations)} {what} without a box {advice}")
    return annotations


def _add_objects(
    annotations: list[dict],
    by_id: dict[int, AnnotatedImage],
    *,
    path: str,
    class_names: ClassNames,
    with_segmentation: bool,
) -> list[Finding]:
    """Add every annotation to its image; return findings for unlisted images and invalid masks."""
    skipped = []
    known = frozenset(class_names.category_ids)
    for index, entry in enumerate(annotations):
        try:
            image_id, annotation = _read_object(entry, known=known, with_segmentation=with_segmentation)
        except InputError as error:
            place = f"annotation {shown(entry['id'])}" if "id" in entry else f"annotations[{index}]"
            raise InputError(f"{path}: {place} of image {shown(entry.get('image_id'))} {error}") from error
        reason = (
            reason_to_skip(annotation.segmentation)
            if image_id in by_id
            else "annotation of an image that is not listed"
        )
        if reason is None:
            by_id[image_id].objects.append(annotation)
        else:
            if image_id in by_id:
                by_id[image_id].refused += 1
            skipped.append(
                Finding(kind="box", file=path, image_id=image_id, annotation_id=annotation.annotation_id, reason=reason)
            )
    return skipped


def _read_object(entry: dict, *, known: frozenset[int], with_segmentation: bool) -> tuple[int, AnnotatedObject]:
    """Return the image id of an annotation and its object."""
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4:
        raise InputError(f"has bbox {shown(box)}, expected 4 numbers (x, y, width, height)")
    category_id = whole_number(entry.get("category_id"), "category_id", least=-LARGEST_ID)
    if category_id not in known:
        raise InputError(f"has category {category_id}; the categories are {listed(sorted(known))}")
    annotation_id, area = entry.get("id"), entry.get("area")
    x, y, width, height = (finite_number(value, "in its bbox") for value in box)
    segmentation = entry.get("segmentation") if with_segmentation else None
    if with_segmentation and not segmentation:
        raise InputError("has no segmentation, which --include_masks needs")
    return whole_number(entry.get("image_id"), "image_id"), AnnotatedObject(
        annotation_id=None if annotation_id is None else whole_number(annotation_id, "id"),
        category_id=category_id,
        box_xywh=(x, y, width, height),
        area=None if area is None else finite_number(area, "area"),
        is_crowd=_is_set(entry.get("iscrowd"), "iscrowd"),
        segmentation=segmentation,
    )


def _is_set(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    number = whole_number(value, name)
    if number > 1:
        raise InputError(f"has {name} {number}, expected 0 or 1")
    return bool(number)


def _add_captions(content: dict, by_id: dict[int, AnnotatedImage], *, path: str) -> list[Finding]:
    orphans = []
    for index, entry in enumerate(_list_of_objects(content, "annotations", path=path)):
        with error_context(f"{path}: annotations[{index}]"):
            image_id = whole_number(entry.get("image_id"), "image_id")
        with error_context(f"{path}: annotations[{index}] of image {image_id}"):
            caption = storable_text(entry.get("caption"), "caption")
        if image_id in by_id:
            by_id[image_id].captions.append(caption)
        else:
            orphans.append(Finding(kind="caption", file=path, image_id=image_id, reason="caption of an unknown image"))
    return orphans
