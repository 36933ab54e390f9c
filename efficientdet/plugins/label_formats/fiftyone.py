"""Read FiftyOne's exports: samples.json of FiftyOneDataset, or labels.json of FiftyOneImageDetectionDataset.

Format: https://docs.voxel51.com/user_guide/export_datasets.html. The type of a sample's field is its `_cls`. A box is
[x, y, width, height] in fractions of the image after EXIF rotation.
"""

from typing import Any

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_in_shares,
)
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import split_of_word
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import error_context, is_set, listed, shown, storable_text, whole_number
from program_support.errors import InputError

_TRUTH = "ground_truth"  # FiftyOne's own default


def read_fiftyone(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read the labeled samples, for the images of a `split` if folders name splits.

    Of the fields with detections `ground_truth` is read, or the only one. A tag named train, val or test is the split
    of its sample. Samples without labels (null) are not used; an empty list is an image without objects. Invalid
    samples and detections are skipped.

    Raises:
        InputError: for a file of another format, without labels, or with several fields of detections.
    """
    labels = LabelCollector(source=path)
    samples, names = _samples_and_classes(read_json(path, hasher=labels.hasher), path)
    with error_context(f"{path}: one of its classes"):
        for name in filter(str.strip, names):
            labels.id_of(name)
    field = _field(samples, path)
    if field != _TRUTH:
        labels.note(f"the labels are those of the field {shown(field)}")
    without = 0
    for index, sample in enumerate(samples):
        where = shown(sample.get("filepath", index)) if isinstance(sample, dict) else index
        with labels.skipping(f"sample {where}"):
            if not isinstance(sample, dict):
                raise InputError(f"is {shown(sample)}, expected an object")
            if (detections := sample.get(field)) is None:
                without += 1
                continue
            image = AnnotatedImage(
                file_name=images.named(sample.get("filepath"), split=split),
                in_shares=True,
                is_upright=True,
                split=_split(sample.get("tags")),
            )
            _add_objects(detections, image, labels, names)
            labels.images.append(image)
    if without:
        labels.note(f"{without} of {len(samples)} samples are not labeled: not used")
        if not labels.images:
            raise InputError(f"{path}: none of its {len(samples)} samples is labeled")
    return labels.named_data_set()


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


def _add_objects(field: Any, image: AnnotatedImage, labels: LabelCollector, names: list[str]) -> None:
    detections = field.get("detections") if isinstance(field, dict) else None
    if not isinstance(detections, list):
        raise InputError(f"has labels {shown(field)}, expected a list of detections")
    for index, detection in enumerate(detections):
        with labels.skipping(f"{image.file_name}: detection {index}", image=image):
            if not isinstance(detection, dict):
                raise InputError(f"is {shown(detection)}, expected an object")
            image.objects.append(
                AnnotatedObject(
                    box_xywh=box_in_shares(detection.get("bounding_box"), "bounding_box"),
                    is_crowd=_is_set(detection, "iscrowd"),
                    is_difficult=_is_set(detection, "difficult"),
                    category_id=labels.id_of(_label(detection.get("label"), names)),
                )
            )
            if detection.get("confidence") is not None:
                labels.notes["boxes have a confidence, as those of a model: used as labels"] += 1


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
