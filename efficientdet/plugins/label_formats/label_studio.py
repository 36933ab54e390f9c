"""Read Label Studio's JSON and JSON-MIN exports: tasks with regions in percent of the width and height of the image.

Format: https://labelstud.io/guide/export (JSON); a rectangle is rotated about its top left corner, clockwise. Brush
masks are run lengths of the values R, G, B, A (https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack).
"""

from typing import Any

import numpy as np

from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_around,
    coordinate,
    ellipse_outline,
    outline_of,
    rotated_corners,
)
from dataset.conversion.folder_files import ImageFolder, image_reference, is_labeled_region
from dataset.files.bounded_files import read_json
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.untrusted_values import is_set, listed, number_of_text, shown, storable_text, whole_number
from object_detection.coco.run_length_masks import mask_bounds
from program_support.errors import InputError

_SIDES, _RADII = ("width", "height"), ("radiusX", "radiusY")
_WITHOUT_AREA = ("keypoint", "keypointlabels", "vector", "vectorlabels")
_NO_REGIONS = ("choices", "number", "pairwise", "ranker", "rating", "relation", "taxonomy", "textarea")


def read_label_studio(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read the tasks that have an annotation: of several, the ground truth, else the last one.

    Invalid tasks and regions are skipped.

    Raises:
        InputError: for a file of another format and for one without boxes.
    """
    labels = LabelCollector(source=path)
    tasks = read_json(path, hasher=labels.hasher)
    if not isinstance(tasks, list):
        raise InputError(f"{path}: is not Label Studio's JSON: expected a list of tasks")
    without = 0
    for index, task in enumerate(_native(tasks)):
        with labels.skipping(f"task {shown(task.get('id', index))}"):
            regions = _regions(task.get("annotations", task.get("completions")), labels)
            if regions is None:
                without += 1
                continue
            image = AnnotatedImage(file_name=_image_name(task, regions, images), is_upright=True)
            labels.images.append(image)
            if all(isinstance(one, dict) and not one.get("original_width") for one in regions):
                image.size = images.size(image.file_name, upright=True)
            _add_objects(regions, image, labels, with_masks=with_masks)
    if without:
        labels.note(f"{without} of {len(tasks)} tasks have no annotation: not used")
        if not labels.images:
            raise InputError(f"{path}: none of its {without} tasks has an annotation; predictions are not read")
    return labels.named_data_set()


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


def _regions(annotations: Any, labels: LabelCollector) -> list | None:
    """Return the regions of the annotation to use, or None for a task without one."""
    if not isinstance(annotations, list):
        raise InputError(f"has annotations {shown(annotations)}, expected a list")
    usable = [
        one for one in annotations if isinstance(one, dict) and not is_set(one.get("was_cancelled"), "was_cancelled")
    ]
    if not usable:
        return None
    if len(usable) > 1:
        labels.notes["tasks have several annotations: the ground truth, else the last one is used"] += 1
    best = next((one for one in usable if is_set(one.get("ground_truth"), "ground_truth")), usable[-1])
    regions = best.get("result")
    if not isinstance(regions, list):
        raise InputError(f"has result {shown(regions)}, expected a list of regions")
    return regions


def _image_name(task: dict, regions: list, images: ImageFolder) -> str:
    """Return the file of a task's image, or of the upload."""
    if len(tags := {str(region.get("to_name")) for region in regions if is_labeled_region(region)}) > 1:
        raise InputError(f"has regions in {len(tags)} images ({listed(sorted(tags))}), expected one image in a task")
    upload = task.get("file_upload")
    return images.named(image_reference(task), *([upload] if isinstance(upload, str) else []))


def _add_objects(regions: list, image: AnnotatedImage, labels: LabelCollector, *, with_masks: bool) -> None:
    labeled = {region["id"] for region in regions if is_labeled_region(region) and isinstance(region.get("id"), str)}
    for index, region in enumerate(regions):
        kind = region.get("type", "") if isinstance(region, dict) else ""
        # A shape and its label may be two entries of one id
        is_double = isinstance(region, dict) and not is_labeled_region(region) and str(region.get("id")) in labeled
        if kind in _NO_REGIONS or is_double:
            continue
        if kind in _WITHOUT_AREA:
            labels.note(f"a {kind} encloses no area: ignored", file=image.file_name, kind="box")
            continue
        with labels.skipping(f"{image.file_name}: region {index}", image=image):
            if not isinstance(region, dict) or not isinstance(value := region.get("value"), dict):
                raise InputError(f"is {shown(region)}, expected an object with a value")
            size = _size(region, image.size)
            if image.size not in (None, size):
                raise InputError(f"says {size[1]}x{size[0]}, an earlier region {image.size[1]}x{image.size[0]}")
            image.size = size
            category_id = labels.id_of(_label(value, labels))
            box, outline = _box_and_outline(value, size, labels)
            if with_masks and outline is None:
                raise InputError("has no outline, and --include_masks needs one: export brush masks as COCO")
            segmentation = [outline] if with_masks else None
            image.objects.append(AnnotatedObject(category_id=category_id, box_xywh=box, segmentation=segmentation))


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


def _label(value: dict, labels: LabelCollector) -> str:
    """Return the first label of a region, in a list such as rectanglelabels or labels."""
    for name, names in value.items():
        if name.endswith("labels") and isinstance(names, list) and names:
            if len(names) > 1:
                labels.notes["regions have several labels: the first one is used"] += 1
            return storable_text(names[0], name)
    raise InputError("has no label")


def _box_and_outline(
    value: dict, size: tuple[int, int], labels: LabelCollector
) -> tuple[tuple[float, float, float, float], list[float] | None]:
    """Return the box in pixels, and the outline unless the region is a rectangle along the axes or a mask."""

    def pixels(percents: list[float]) -> list[float]:
        return [
            coordinate(percent / 100 * size[1 - place % 2], "in its value") for place, percent in enumerate(percents)
        ]

    if value.get("format") == "rle":
        return _box_around_brush(value.get("rle"), size), None
    degrees = coordinate(value.get("rotation") or 0, "rotation")
    sides = next((names for names in (_RADII, _SIDES) if all(name in value for name in ("x", "y", *names))), None)
    if isinstance(points := value.get("points"), list):
        outline = pixels(outline_of(points))
        if len(outline) < 6:
            raise InputError(f"has points {shown(points)}, expected at least 3 pairs of x and y")
    elif sides is None:
        raise InputError(f"has value {shown(value)}, expected a rectangle, polygon, ellipse or brush mask")
    else:
        x, y, across, down = pixels([coordinate(value[name], name) for name in ("x", "y", *sides)])
        if sides is _RADII:
            outline = ellipse_outline((x, y), (across, down), degrees)
        elif degrees:
            outline = rotated_corners((x, y, across, down), degrees, center=(x, y))
            labels.notes[ROTATED] += 1
        else:
            right, bottom, x, y = round(x + across, 2), round(y + down, 2), round(x, 2), round(y, 2)
            return (x, y, round(right - x, 2), round(bottom - y, 2)), None
    x, y, width, height = box_around([round(side, 2) for side in outline])  # hundredths, as YOLO's boxes
    return (x, y, round(width, 2), round(height, 2)), outline


def _box_around_brush(run_lengths: object, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the box (x, y, width, height) around the opaque pixels of an image of `size` (height, width)."""
    try:
        if not isinstance(run_lengths, list) or size[0] * size[1] > LARGEST_IMAGE_PIXELS:
            raise ValueError  # bytes(2**31) would be as many zeros
        opaque = _decoded(bytes(run_lengths), 4 * size[0] * size[1]).reshape(*size, 4)[..., 3] > 0
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"has a brush mask that is not one of {size[1]}x{size[0]} pixels") from error
    top, left, bottom, right = mask_bounds(opaque)
    if not bottom:
        raise InputError("has a brush mask without a pixel")
    return left, top, right - left, bottom - top


def _decoded(packed: bytes, count: int) -> np.ndarray:
    """Return `count` values uint8; raise ValueError if there are not as many."""
    bits, position = "".join(f"{byte:08b}" for byte in packed), 0

    def read(length: int) -> int:
        nonlocal position
        position += length
        return int(bits[position - length : position], 2)

    if read(32) != count:
        raise ValueError
    value_bits = read(5) + 1
    length_bits = [read(4) + 1 for _ in range(4)]
    values, done = np.zeros(count, np.uint8), 0
    while done < count:
        is_run = read(1)
        end = done + 1 + read(length_bits[read(2)])
        values[done:end] = read(value_bits) if is_run else [read(value_bits) for _ in range(end - done)]
        done = end
    return values
