"""Read FiftyOne's exports: samples.json of FiftyOneDataset, or labels.json of FiftyOneImageDetectionDataset.

Format: https://docs.voxel51.com/user_guide/export_datasets.html. The type of a sample's field is its `_cls`. A box is
[x, y, width, height] in fractions of the image after EXIF rotation.
"""

import hashlib
from typing import Any

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    SplitContent,
    box_in_shares,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import split_of_word
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import error_context, is_set, listed, shown, storable_text, whole_number
from program_support.errors import InputError

_TRUTH = "ground_truth"  # FiftyOne's own default


def read_fiftyone(path: str, images: ImageFolder, *, split: str | None = None) -> AnnotatedDataSet:
    """Read the labeled samples, for the images of a `split` if folders name splits.

    Of the fields with detections `ground_truth` is read, or the only one. A tag named train, val or test is the split
    of its sample. Samples without labels (null) are not used; an empty list is an image without objects. Invalid
    samples and detections are skipped.

    Raises:
        InputError: for a file of another format, without labels, or with several fields of detections.
    """
    hasher, classes, content = hashlib.sha256(), ClassNumbering(), SplitContent()
    samples, names = _samples_and_classes(read_json(path, hasher=hasher), path)
    with error_context(f"{path}: one of its classes"):
        for name in filter(str.strip, names):
            classes.id_of(name)
    field = _field(samples, path)
    if field != _TRUTH:
        content.note(path, f"the labels are those of the field {shown(field)}")
    without = 0
    for index, sample in enumerate(samples):
        where = shown(sample.get("filepath", index)) if isinstance(sample, dict) else index
        with content.skipping(kind="image", file=path), error_context(f"sample {where}"):
            if not isinstance(sample, dict):
                raise InputError(f"is {shown(sample)}, expected an object")
            if (labels := sample.get(field)) is None:
                without += 1
                continue
            image = AnnotatedImage(
                file_name=images.named(sample.get("filepath"), split=split),
                in_shares=True,
                is_upright=True,
                split=_split(sample.get("tags")),
            )
            _add_objects(labels, image, content, path=path, classes=classes, names=names)
            images.in_pixels(image)
            content.images.append(image)
    if without:
        content.note(path, f"{without} of {len(samples)} samples are not labeled: not used")
    if not content.images and without:
        raise InputError(f"{path}: none of its {len(samples)} samples is labeled")
    class_names = classes.class_names(path, content)
    return content.data_set(source=path, class_names=class_names, fingerprint=hasher.hexdigest())


def _samples_and_classes(value: Any, path: str) -> tuple[list, list[str]]:
    """Return the samples, and the names that numbers as labels refer to; labels.json becomes such samples, too."""
    if isinstance(value, dict) and isinstance(samples := value.get("samples"), list):
        return samples, []
    if not isinstance(value, dict) or not isinstance(labels := value.get("labels"), dict):
        raise InputError(f"{path}: is not FiftyOne's json: expected a list of samples, or labels by name of the image")
    if not isinstance(names := value.get("classes") or [], list):
        raise InputError(f"{path}: has classes {shown(names)}, expected a list")
    with error_context(f"{path}:"):
        names = [storable_text(name, "in its classes") for name in names]
    return [
        {"filepath": name, _TRUTH: None if boxes is None else {"_cls": "Detections", "detections": boxes}}
        for name, boxes in labels.items()
    ], names


def _field(samples: list, path: str) -> str:
    """Return the field with the labels: `ground_truth`, or the only one with detections."""
    fields = {
        name
        for sample in samples
        if isinstance(sample, dict)
        for name, value in sample.items()
        if (isinstance(value, dict) and value.get("_cls") == "Detections") or (name, value) == (_TRUTH, None)
    }
    if _TRUTH in fields:
        return _TRUTH
    if len(fields) != 1:
        found = f"the fields {listed(sorted(map(shown, fields)))} have detections" if fields else "has no detections"
        raise InputError(
            f"{path}: {found}; expected those of {_TRUTH} or of one field, as in an export of "
            'dataset.select_fields("FIELD")'
        )
    return fields.pop()


def _split(tags: Any) -> str | None:
    """Return the split that the tags of a sample name, or None."""
    words = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    splits = {split for word in words if (split := split_of_word(word))}
    if len(splits) > 1:
        raise InputError(f"has the tags {shown(words)}, expected one of train, val and test")
    return splits.pop() if splits else None


def _add_objects(
    labels: Any,
    image: AnnotatedImage,
    content: SplitContent,
    *,
    path: str,
    classes: ClassNumbering,
    names: list[str],
) -> None:
    detections = labels.get("detections") if isinstance(labels, dict) else None
    if not isinstance(detections, list):
        raise InputError(f"has labels {shown(labels)}, expected a list of detections")
    for index, detection in enumerate(detections):
        with content.skipping(file=path, image=image), error_context(f"{image.file_name}: detection {index}"):
            if not isinstance(detection, dict):
                raise InputError(f"is {shown(detection)}, expected an object")
            box = box_in_shares(detection.get("bounding_box"), "bounding_box")
            image.objects.append(
                AnnotatedObject(
                    box_xywh=box,
                    is_crowd=_is_set(detection, "iscrowd"),
                    is_difficult=_is_set(detection, "difficult"),
                    category_id=classes.id_of(_label(detection.get("label"), names)),
                )
            )
            if detection.get("confidence") is not None:
                content.notes["boxes have a confidence, as those of a model: used as labels"] += 1


def _label(label: Any, names: list[str]) -> str:
    """Return the label, or the name that its number refers to."""
    if isinstance(label, str):
        return storable_text(label, "label")
    number = whole_number(label, "label")
    if number >= len(names):
        raise InputError(f"has label {number}, expected text or the number of one of {len(names)} classes")
    return names[number]


def _is_set(detection: dict, name: str) -> bool:
    """Return a flag, which is an attribute of a detection or, of older versions, in its `attributes`."""
    attributes = detection.get("attributes")
    flag = detection.get(name, attributes.get(name) if isinstance(attributes, dict) else None)
    return is_set(flag.get("value") if isinstance(flag, dict) else flag, name)
