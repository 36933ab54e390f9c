"""Read COCO annotation files, and reject files that would silently train on wrong data.

Format: https://cocodataset.org/#format-data. Boxes are (x, y, width, height) in pixels of the stored image.
"""

import contextlib
import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    ReportEntry,
    SplitContent,
    checked_file_name,
)
from dataset.conversion.formats.coco_findings import odd_annotations, odd_images
from dataset.conversion.formats.coco_objects import read_object
from dataset.conversion.segmentation import reason_to_skip
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import (
    LARGEST_ID,
    error_context,
    number_of_text,
    shown,
    storable_text,
    whole_number,
)
from program_support.errors import InputError


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
    hasher = hashlib.sha256()
    image_source = image_info_file or object_annotations_file
    files = {
        path: _read_data_set(path, hasher)
        for path in dict.fromkeys((image_source, object_annotations_file, caption_annotations_file))
        if path
    }
    content = SplitContent()
    image_ids = _add_images(files[image_source], image_source, file_name, content)
    content.noted += odd_images(content.images)
    source = object_annotations_file or image_source
    class_names, category_ids = _read_categories(files[source], source, required=bool(object_annotations_file))
    for ids, what in ((image_ids, "image"), (category_ids, "category")):
        if ids.note:
            content.note(source, f"{what} ids {ids.note}")
    if object_annotations_file:
        assert class_names is not None  # `required`
        annotations = _boxed_annotations(files[object_annotations_file], object_annotations_file)
        _add_objects(
            annotations,
            content,
            path=object_annotations_file,
            ids=(image_ids, category_ids),
            known=class_names.category_ids,
            with_segmentation=with_segmentation,
        )
        content.noted += odd_annotations(annotations, object_annotations_file)
    if caption_annotations_file:
        content.noted += _captions(files[caption_annotations_file], content, image_ids, path=caption_annotations_file)
    return content.data_set(source=source, class_names=class_names, fingerprint=hasher.hexdigest())


def _read_data_set(path: str, hasher: Any) -> dict:
    content = read_json(path, hasher=hasher)
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


def _add_images(content: dict, path: str, file_name: Callable[[Any], str], split_content: SplitContent) -> _Ids:
    entries = _entries(content, "images", path=path)
    if not entries:
        raise InputError(f"{path}: lists no images")
    ids = _Ids((entry.get("id") for entry in entries), least=0)
    names_of: dict[int, str] = {}
    ambiguous = set()
    for index, entry in enumerate(entries):
        with split_content.skipping(kind="image", file=path), error_context(f"images[{index}]"):
            image_id = ids.of(entry.get("id"), "id")
            with error_context(f"of id {image_id}:"):
                name = file_name(_name(entry, split_content))
                if image_id in names_of:
                    ambiguous.add(image_id)
                    raise InputError(
                        f"image id {image_id} is given twice, to {shown(names_of[image_id])} and {shown(name)}"
                    )
                image = AnnotatedImage(image_id=image_id, file_name=name, size=_image_size(entry))
                names_of[image_id] = name
                split_content.images.append(image)
    split_content.images = [image for image in split_content.images if image.image_id not in ambiguous]
    for image_id in sorted(ambiguous):
        reason = "its id is that of another image: its boxes are unknown"
        split_content.skipped.append(
            ReportEntry(kind="image", file=names_of[image_id], image_id=image_id, reason=reason)
        )
    return ids


def _name(entry: dict, content: SplitContent) -> Any:
    """Return the file name of an image; LVIS has only the address at which COCO publishes it."""
    if not (name := entry.get("file_name")) and isinstance(address := entry.get("coco_url"), str):
        content.notes["images have no file_name: the last part of coco_url is used"] += 1
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


def _add_objects(
    annotations: list[dict],
    content: SplitContent,
    *,
    path: str,
    ids: tuple[_Ids, _Ids],
    known: tuple[int, ...],
    with_segmentation: bool,
) -> None:
    """Add every annotation to its image; skip those of unlisted images, with invalid boxes and with invalid masks."""
    by_id = {image.image_id: image for image in content.images}
    categories = frozenset(known)
    for index, entry in enumerate(annotations):
        image, image_id, annotation_id = None, None, _key(entry.get("id"))
        try:
            with error_context(f"annotations[{index}]" if type(annotation_id) is not int else ""):
                image_id = ids[0].of(entry.get("image_id"), "image_id")
                image = by_id.get(image_id)
                if image is None:
                    raise InputError("annotation of an image that is not listed")
                category_id = ids[1].of(entry.get("category_id"), "category_id")
                annotation = read_object(
                    entry, category_id, known=categories, with_segmentation=with_segmentation, notes=content.notes
                )
                if reason := reason_to_skip(annotation.segmentation):
                    raise InputError(reason)
                image.objects.append(annotation)
        except InputError as error:
            if image is not None:
                image.refused += 1
            content.skipped.append(
                ReportEntry(
                    kind="box",
                    file=path,
                    image_id=image_id if image_id is not None and image_id >= 0 else None,
                    annotation_id=annotation_id if type(annotation_id) is int else None,
                    reason=str(error).strip(),
                )
            )


def _captions(content: dict, split_content: SplitContent, ids: _Ids, *, path: str) -> list[ReportEntry]:
    by_id = {image.image_id: image for image in split_content.images}
    orphans = []
    for index, entry in enumerate(_entries(content, "annotations", path=path)):
        with error_context(f"{path}: annotations[{index}]"):
            image_id = ids.of(entry.get("image_id"), "image_id")
        with error_context(f"{path}: annotations[{index}] of image {image_id}"):
            caption = storable_text(entry.get("caption"), "caption")
        if image_id in by_id:
            by_id[image_id].captions.append(caption)
        else:
            reason = "caption of an unknown image"
            orphans.append(ReportEntry(kind="caption", file=path, image_id=image_id, reason=reason))
    return orphans
