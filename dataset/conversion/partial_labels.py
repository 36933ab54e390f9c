"""Images that are labeled for some of the classes only: the others are marked as unlabeled, or labeled by a detector.

A class without labels gets a crowd box of the complete image: COCO's mark of a region whose objects are not labeled one
by one. Evaluation then ignores detections of the class, and training does with `ignore_in_crowds`.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.upright_labels import mark_upright, stored_shape
from dataset.files.untrusted_values import listed, shown
from program_support.errors import InputError


def with_unlabeled_classes(
    by_split: Mapping[str, AnnotatedDataSet],
    images: ImageFolder,
    *,
    labeled_classes: Collection[str],
    pseudo_labels: str | None,
) -> dict[str, AnnotatedDataSet]:
    """Return the splits with a crowd box of the complete image for each class that is not labeled.

    Args:
        by_split: Data sets by split.
        images: Their folder.
        labeled_classes: Names of the classes that the labels contain, in every image.
        pseudo_labels: COCO JSON file with detections in the images, as infer.py --format=coco writes it; those of other
            classes become objects.

    Raises:
        InputError: a class is unknown, an object has a class that is not among them, or the file fits no image.
    """
    class_names = next(iter(by_split.values())).class_names
    assert class_names is not None
    if unknown := {*labeled_classes} - {*class_names.names}:
        raise InputError(
            f"--labeled_classes={','.join(labeled_classes)}: the data set has no class {listed(sorted(unknown))}; "
            f"expected some of {listed(class_names.names)}"
        )
    number_of = dict(zip(class_names.names, class_names.category_ids, strict=True))
    unlabeled = {name: number for name, number in number_of.items() if name not in labeled_classes}
    if not unlabeled:
        raise InputError(
            f"--labeled_classes={','.join(labeled_classes)}: are all classes of the data set; expected further ones in "
            "--label_map_json_path"
        )
    found: dict[str, AnnotatedImage] = {}
    digest = ""
    if pseudo_labels:
        detections = read_coco(object_annotations_file=pseudo_labels, file_name=ImageFolder(images.folder).named)
        found, digest = _of_classes(detections, unlabeled, images.folder), detections.fingerprint
        names = {image.file_name for data in by_split.values() for image in data.images}
        if not names & found.keys():
            raise InputError(
                f"--pseudo_labels={pseudo_labels}: has no object of {listed(unlabeled)} in one of the images, such as "
                f"{min(names)}"
            )
    boxes = sum(len(image.objects) for image in found.values())
    print(
        f"labeled classes: {listed(sorted(labeled_classes))}; marked as unlabeled in each image: {listed(unlabeled)}"
        + (f"; {boxes} of their boxes are from {pseudo_labels}" if pseudo_labels else "")
    )
    completed = {}
    for split, data in by_split.items():
        added = [_added(image, images, unlabeled, found.get(image.file_name)) for image in data.images]
        completed[split] = replace(
            data,
            images=[
                replace(image, objects=[*image.objects, *objects])
                for image, objects in zip(data.images, added, strict=True)
            ],
            listed_boxes=data.listed_boxes + sum(map(len, added)),
            fingerprint=hashlib.sha256(f"{data.fingerprint} {sorted(unlabeled)} {digest}".encode()).hexdigest(),
        )
    return completed


def _of_classes(detections: AnnotatedDataSet, classes: Mapping[str, int], folder: Path) -> dict[str, AnnotatedImage]:
    """Return the images with objects of the classes, by name, with their category ids."""
    assert detections.class_names is not None
    names = dict(zip(detections.class_names.category_ids, detections.class_names.names, strict=True))
    mark_upright(list(detections.images), folder)
    found = {}
    for image in detections.images:
        objects = [
            replace(one, category_id=classes[name], annotation_id=None)
            for one in image.objects
            if (name := names[one.category_id]) in classes
        ]
        if objects:
            found[image.file_name] = replace(image, objects=objects)
    return found


def _added(
    image: AnnotatedImage, images: ImageFolder, unlabeled: Mapping[str, int], found: AnnotatedImage | None
) -> list[AnnotatedObject]:
    """Return the crowd boxes of the complete image, and the detected objects in the image's coordinates."""
    if wrong := {one.category_id for one in image.objects} & {*unlabeled.values()}:
        name = next(name for name, number in unlabeled.items() if number in wrong)
        raise InputError(f"{image.file_name}: has an object of {shown(name)}, which is not among --labeled_classes")
    shape = stored_shape(images.path(image.file_name))
    if shape is None:
        return []  # the conversion skips the image
    height, width = shape.upright_size if image.is_upright else shape.size
    x_scale, y_scale = (1 / width, 1 / height) if image.in_shares else (1.0, 1.0)
    # Where only one of both is of the upright image, detected boxes are left out: the crowd box stands for them.
    fits = found is not None and (shape.orientation == 1 or found.is_upright == image.is_upright)
    objects = found.objects if found is not None and fits else []
    whole = [
        AnnotatedObject(category_id=number, box_xywh=(0.0, 0.0, float(width), float(height)), is_crowd=True)
        for number in unlabeled.values()
    ]
    return [
        replace(one, box_xywh=(x * x_scale, y * y_scale, box_width * x_scale, box_height * y_scale))
        for one in (*objects, *whole)
        for x, y, box_width, box_height in [one.box_xywh]
    ]
