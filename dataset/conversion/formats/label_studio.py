"""Read Label Studio's JSON and JSON-MIN exports: tasks with regions in percent of the width and height of the image.

Format: https://labelstud.io/guide/export (JSON); a rectangle is rotated about its top left corner, clockwise.
"""

import hashlib
from pathlib import PurePosixPath
from typing import Any

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    SplitContent,
    box_around,
    ellipse_outline,
    rotated_corners,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import ImageFolder, name_forms
from dataset.conversion.formats.brush_masks import box_around_brush
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.bounded_files import read_json
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.files.untrusted_values import (
    error_context,
    finite_number,
    is_set,
    listed,
    number_of_text,
    shown,
    storable_text,
    whole_number,
)
from program_support.errors import InputError

_RECTANGLE, _ELLIPSE = ("x", "y", "width", "height"), ("x", "y", "radiusX", "radiusY")
_WITHOUT_AREA = ("keypoint", "keypointlabels", "vector", "vectorlabels")
_NO_REGIONS = ("choices", "number", "pairwise", "ranker", "rating", "relation", "taxonomy", "textarea")


def read_label_studio(path: str, images: ImageFolder, *, with_masks: bool) -> AnnotatedDataSet:
    """Read the tasks that have an annotation: of several, the ground truth, else the last one.

    Invalid tasks and regions are skipped.

    Raises:
        InputError: for a file of another format and for one without boxes.
    """
    hasher, classes, content = hashlib.sha256(), ClassNumbering(), SplitContent()
    tasks = read_json(path, hasher=hasher)
    if not isinstance(tasks, list):
        raise InputError(f"{path}: is not Label Studio's JSON: expected a list of tasks")
    without = 0
    for index, task in enumerate(_native(tasks)):
        with content.skipping(kind="image", file=path), error_context(f"task {shown(task.get('id', index))}"):
            annotations = task.get("annotations", task.get("completions"))
            regions = _regions(annotations, content)
            if regions is None:
                without += 1
                continue
            image = AnnotatedImage(file_name=_image_name(task, regions, images), is_upright=True)
            content.images.append(image)
            if all(isinstance(one, dict) and not one.get("original_width") for one in regions):
                image.size = images.size(image.file_name, upright=True)
            _add_objects(regions, image, content, path=path, classes=classes, with_masks=with_masks)
    if without:
        reason = f"{without} of {len(tasks)} tasks have no annotation: not used"
        content.note(path, reason)
    if not content.images and without:
        raise InputError(f"{path}: none of its {without} tasks has an annotation; predictions are not read")
    class_names = classes.class_names(path, content)
    return content.data_set(source=path, class_names=class_names, fingerprint=hasher.hexdigest())


def _native(entries: list) -> list[dict]:
    """Return tasks as in JSON: JSON-MIN has a task for each annotation, with lists of regions beside the image."""
    tasks: list[dict] = []
    of_id: dict[str, dict] = {}
    for entry in entries:
        if not isinstance(entry, dict) or "annotations" in entry or "completions" in entry:
            tasks.append(entry if isinstance(entry, dict) else {})
            continue
        if isinstance(entry.get("data"), dict) and "predictions" in entry:  # to import, not exported
            tasks.append({**entry, "annotations": []})
            continue
        lists = [value for value in entry.values() if isinstance(value, list)]
        regions = [{"value": one, **one} for values in lists for one in values if isinstance(one, dict)]
        key = repr(entry.get("id", len(tasks)))
        if key not in of_id:
            of_id[key] = {"id": entry.get("id"), "data": entry, "annotations": []}
            tasks.append(of_id[key])
        of_id[key]["annotations"].append({"result": regions})
    return tasks


def _regions(annotations: Any, content: SplitContent) -> list | None:
    """Return the regions of the annotation to use, or None for a task without one."""
    if not isinstance(annotations, list):
        raise InputError(f"has annotations {shown(annotations)}, expected a list")
    usable = [
        one for one in annotations if isinstance(one, dict) and not is_set(one.get("was_cancelled"), "was_cancelled")
    ]
    if not usable:
        return None
    if len(usable) > 1:
        content.notes["tasks have several annotations: the ground truth, else the last one is used"] += 1
    best = next((one for one in usable if is_set(one.get("ground_truth"), "ground_truth")), usable[-1])
    regions = best.get("result")
    if not isinstance(regions, list):
        raise InputError(f"has result {shown(regions)}, expected a list of regions")
    return regions


def image_reference(task: dict) -> str | None:
    """Return the image of a task, a value of its data.

    Its key is often the name of the tag that the regions are in, or `image`; else the first one that names an image.
    """
    data, annotations = task.get("data"), task.get("annotations")
    texts = {key: value for key, value in data.items() if isinstance(value, str)} if isinstance(data, dict) else {}
    results = [one.get("result") for one in annotations or () if isinstance(one, dict)]
    tags = _image_tags([region for result in results if isinstance(result, list) for region in result])
    named = [key for key in texts if _is_image_name(texts[key])]
    key = next(filter(texts.__contains__, [*(tags & {*named}), "image", *named, *texts]), None)
    return None if key is None else texts[key]


def _image_tags(regions: list) -> set[str]:
    return {str(region.get("to_name")) for region in regions if _is_labeled(region)}


def _image_name(task: dict, regions: list, images: ImageFolder) -> str:
    """Return the file of a task's image, or of the upload."""
    if len(tags := _image_tags(regions)) > 1:
        raise InputError(f"has regions in {len(tags)} images ({listed(sorted(tags))}), expected one image in a task")
    upload = task.get("file_upload")
    return images.named(image_reference(task), *([upload] if isinstance(upload, str) else []))


def _is_image_name(text: str) -> bool:
    """Return whether an address, or the file in its query, ends as the name of an image."""
    return any(PurePosixPath(form).suffix.lower() in IMAGE_SUFFIXES for form in name_forms(text))


def _add_objects(
    regions: list, image: AnnotatedImage, content: SplitContent, *, path: str, classes: ClassNumbering, with_masks: bool
) -> None:
    labeled = {_id(region) for region in regions if _is_labeled(region)} - {None}
    for index, region in enumerate(regions):
        kind = region.get("type", "") if isinstance(region, dict) else ""
        is_double = not _is_labeled(region) and _id(region) in labeled
        if kind in _NO_REGIONS or is_double:  # a shape and its label may be two entries of one id
            continue
        if kind in _WITHOUT_AREA:
            reason = f"a {kind} encloses no area: ignored"
            content.note(image.file_name, reason, kind="box")
            continue
        with content.skipping(file=path, image=image), error_context(f"{image.file_name}: region {index}"):
            if not isinstance(region, dict) or not isinstance(value := region.get("value"), dict):
                raise InputError(f"is {shown(region)}, expected an object with a value")
            size = _size(region, image.size)
            if image.size not in (None, size):
                raise InputError(f"says {size[1]}x{size[0]}, an earlier region {image.size[1]}x{image.size[0]}")
            image.size = size
            category_id = classes.id_of(_label(value, content))
            box, outline = _box_and_outline(value, size, content)
            if with_masks and outline is None:
                raise InputError("has no outline, and --include_masks needs one: export brush masks as COCO")
            image.objects.append(
                AnnotatedObject(
                    category_id=category_id,
                    box_xywh=box,
                    segmentation=[outline] if with_masks else None,
                )
            )


def _is_labeled(region: Any) -> bool:
    value = region.get("value") if isinstance(region, dict) else None
    return isinstance(value, dict) and any(name.endswith("labels") for name in value)


def _id(region: Any) -> str | None:
    return region["id"] if isinstance(region, dict) and isinstance(region.get("id"), str) else None


def _size(region: dict, known: tuple[int, int] | None) -> tuple[int, int]:
    """Return (height, width) of the image of a region, or the known one if the region lacks it."""
    if number_of_text(region.get("image_rotation")) not in (None, 0, 0.0):
        raise InputError(
            f"was drawn on an image rotated by {shown(region['image_rotation'])} degrees in Label Studio; expected 0: "
            "rotate the image file and label it again"
        )
    if known and not region.get("original_width"):
        return known
    height, width = (
        whole_number(number_of_text(region.get(name)), name, least=1) for name in ("original_height", "original_width")
    )
    return height, width


def _label(value: dict, content: SplitContent) -> str:
    """Return the first label of a region, in a list such as rectanglelabels or labels."""
    for name, labels in value.items():
        if name.endswith("labels") and isinstance(labels, list) and labels:
            if len(labels) > 1:
                content.notes["regions have several labels: the first one is used"] += 1
            return storable_text(labels[0], name)
    raise InputError("has no label")


def _box_and_outline(
    value: dict, size: tuple[int, int], content: SplitContent
) -> tuple[tuple[float, float, float, float], list[float] | None]:
    """Return the box in pixels, and the outline unless the region is a rectangle along the axes or a mask."""
    height, width = size
    degrees = finite_number(number_of_text(value.get("rotation") or 0), "rotation")
    if value.get("format") == "rle":
        return box_around_brush(value.get("rle"), size), None
    if isinstance(points := value.get("points"), list):
        if len(points) < 3 or any(not isinstance(point, list) or len(point) != 2 for point in points):
            raise InputError(f"has points {shown(points)}, expected at least 3 pairs of x and y")
        outline = [
            _pixels(side, length) for point in points for side, length in zip(point, (width, height), strict=True)
        ]
        return _in_hundredths(outline), outline
    if all(name in value for name in _ELLIPSE):
        x, y, across, down = (
            _pixels(value[name], length) for name, length in zip(_ELLIPSE, (width, height, width, height), strict=True)
        )
        outline = ellipse_outline((x, y), (across, down), degrees)
        return _in_hundredths(outline), outline
    if not all(name in value for name in _RECTANGLE):
        raise InputError(f"has value {shown(value)}, expected a rectangle, polygon, ellipse or brush mask")
    x, y, across, down = (
        _pixels(value[name], length) for name, length in zip(_RECTANGLE, (width, height, width, height), strict=True)
    )
    outline = rotated_corners((x, y, across, down), degrees, center=(x, y))
    if not degrees:
        right, bottom = round(x + across, 2), round(y + down, 2)
        return (round(x, 2), round(y, 2), round(right - round(x, 2), 2), round(bottom - round(y, 2), 2)), None
    content.notes["rotated boxes became the boxes around them"] += 1
    return _in_hundredths(outline), outline


def _pixels(percent: Any, length: int) -> float:
    number = finite_number(number_of_text(percent), "in its value") / 100 * length
    if abs(number) > LARGEST_COORDINATE:
        raise InputError(f"has {number:g} in its value, expected at most {LARGEST_COORDINATE:g}")
    return number


def _in_hundredths(outline: list[float]) -> tuple[float, float, float, float]:
    """Return the box around an outline, rounded to hundredths of a pixel, as YOLO's boxes are."""
    x, y, width, height = box_around([round(value, 2) for value in outline])
    return x, y, round(width, 2), round(height, 2)
