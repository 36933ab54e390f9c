"""Category ids of classes, from the data set, or assigned by name; the same for all splits."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedObject, ReportEntry
from dataset.files.image_files import image_ids
from dataset.files.untrusted_values import listed, shown
from program_support.errors import InputError

VOC_NAMES = (  # ids 1 to 20
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def classes_by_name(names: Iterable[str]) -> ClassNames:
    """Return the 20 VOC classes if they include all names, else all names, numbered from 1 in alphabetical order."""
    used = {*names}
    ordered = VOC_NAMES if used <= {*VOC_NAMES} else sorted(used)
    return ClassNames.from_pairs(enumerate(ordered, start=1))


def named_classes(data: AnnotatedDataSet) -> ClassNames:
    """Return the classes of labels with boxes, which always name them."""
    assert data.class_names is not None, f"{data.source}: labels without classes"
    return data.class_names


def with_composed_names(data: AnnotatedDataSet) -> AnnotatedDataSet:
    """Return the data set with class names in Unicode's composed form, with a note where that changes one.

    Two classes whose names look alike, as macOS decomposes the letters of file names, become one.
    """
    composed, first = {}, dict[str, int]()
    for number, name in named_classes(data).by_id().items():
        composed[number] = first.setdefault(unicodedata.normalize("NFC", name), number)
    names = ClassNames(tuple(first.values()), tuple(first))
    if names == data.class_names:
        return data
    changed = sorted({*named_classes(data).names} - {*names.names})
    for image in data.images:
        image.objects = [replace(one, category_id=composed[one.category_id]) for one in image.objects]
    reason = (
        f"class names in decomposed Unicode letters, such as {shown(changed[0])} ({len(changed)} in all), are read as "
        "those of the same letters"
    )
    noted = [*data.noted, ReportEntry(kind="image", file=data.source, reason=reason)]
    return replace(data, class_names=names, noted=noted)


def common_classes(by_split: Mapping[str, AnnotatedDataSet], *, own_numbers: bool) -> ClassNames:
    """Return the classes of all splits: with the ids of the data set where these agree, else numbered by name."""
    if own_numbers:
        brought = {pair for data in by_split.values() for pair in named_classes(data).by_id().items()}
        if any(len({*side}) < len(brought) for side in zip(*brought, strict=True)):
            return ClassNames.numbered(sorted({name for _, name in brought}))
        return ClassNames.from_pairs(brought)
    used: set[str] = set()
    for data in by_split.values():
        names = named_classes(data).by_id()
        all_of_voc = named_classes(data).names == VOC_NAMES  # the reader's default, not the classes in use
        used |= (
            {names[one.category_id] for image in data.images for one in image.objects}
            if all_of_voc
            else {*names.values()}
        )
    return classes_by_name(used)


def note_of_other_ids(by_split: Mapping[str, AnnotatedDataSet], class_names: ClassNames) -> str | None:
    """Return a note if files of one data set give a class other ids than `class_names`."""
    ids = class_names.by_id().items()
    if all(named_classes(data).by_id().items() <= ids for data in by_split.values()):
        return None
    return f"{listed(data.source for data in by_split.values())} number the classes differently: merged by name"


def in_one_order(
    by_split: Mapping[str, AnnotatedDataSet], class_names: ClassNames, *, own_image_ids: bool
) -> dict[str, AnnotatedDataSet]:
    """Return the splits with the ids of `class_names`, in an order independent of the format.

    Images are sorted by name, objects by position. Images are numbered across all splits from their names, or keep
    their own ids.

    Raises:
        InputError: for an object whose class has no id.
    """
    ordered = {split: sorted(data.images, key=lambda image: image.file_name) for split, data in by_split.items()}
    every_image = sorted((image for images in ordered.values() for image in images), key=lambda image: image.file_name)
    if not own_image_ids:
        for image, number in zip(every_image, image_ids([image.file_name for image in every_image]), strict=True):
            image.image_id = number
    composed = [unicodedata.normalize("NFC", name) for name in class_names.names]  # as those of the labels
    number_of = dict(zip(composed, class_names.category_ids, strict=True))
    merged = {}
    for split, data in by_split.items():
        names = named_classes(data).by_id()
        for image in ordered[split]:
            objects = []
            for one in image.objects:
                if (name := names[one.category_id]) not in number_of:
                    raise InputError(
                        f"{image.file_name}: class {shown(name)} of an object is not in the label map; expected one "
                        f"of {listed(number_of)}"
                    )
                objects.append(replace(one, category_id=number_of[name]))
            image.objects = sorted(objects, key=_place)
        made_from = [
            data.fingerprint,
            class_names.to_categories(),
            [[one.image_id, one.file_name] for one in ordered[split]],
        ]
        merged[split] = replace(
            data,
            images=ordered[split],
            class_names=class_names,
            fingerprint=hashlib.sha256(json.dumps(made_from).encode()).hexdigest(),
        )
    return merged


def _place(annotation: AnnotatedObject) -> tuple[float, ...]:
    """Return a sort key, top to bottom and left to right; formats agree to a thousandth of a pixel."""
    x, y, width, height = (round(side, 3) for side in annotation.box_xywh)
    return y, x, height, width, annotation.category_id
