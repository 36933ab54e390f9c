"""Divide images into the folds of a cross-validation: groups stay together, classes are stratified."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.image_split import image_groups
from dataset.files.image_files import image_ids
from dataset.files.pixel_values import FULL_RANGE, ValueRange
from program_support.errors import InputError


def divided_into_folds(
    data: AnnotatedDataSet,
    images: ImageFolder,
    *,
    folds: int,
    seed: int,
    group_by: str | None = None,
    value_range: ValueRange = FULL_RANGE,
) -> tuple[AnnotatedDataSet, int]:
    """Return the data set with a shard for each fold, and the number of images that follow another of their group.

    group_by: see `image_groups`. value_range: see `as_rgb`.

    Raises:
        InputError: there are too few groups of images.
    """
    groups = image_groups(data.images, images, group_by=group_by, value_range=value_range)
    names = [image.file_name for image in data.images]
    fold_of = stratified_folds(
        [{one.category_id for one in image.objects} for image in data.images], groups, names, folds=folds, seed=seed
    )
    if len(used := np.unique(fold_of)) < folds:
        raise InputError(
            f"--folds={folds}: {len(names)} images in {len(groups)} groups that stay together fill {len(used)} folds; "
            "expected fewer folds, or smaller groups"
        )
    return replace(data, shards=fold_of), len(names) - len(groups)


def stratified_folds(
    classes: Sequence[set[int]], groups: Sequence[list[int]], names: Sequence[str], *, folds: int, seed: int
) -> np.ndarray:
    """Return the fold of each image, [n] from 0 to folds - 1, which depends only on the arguments.

    Iterative stratification of groups (Sechidis et al. 2011): the rarest class first, each group to the fold that has
    the fewest images of the class, else the fewest images. Images without objects are a class of their own. Large
    groups are placed first, as small ones can balance them.

    Args:
        classes: of each image.
        groups: numbers of images that share a fold; each image is in one group.
        names: of the images, which shuffle them together with the seed.
        folds: number of folds.
        seed: of the order of groups of one size.
    """
    groups = sorted(
        groups, key=lambda group: (-len(group), hashlib.sha256(f"{seed} {names[group[0]]}".encode()).digest())
    )
    columns = {label: column for column, label in enumerate(sorted(set().union(*classes)))}
    counts = np.zeros((len(groups), len(columns) + 1), np.int64)  # images of each class; in the last column without one
    for row, group in zip(counts, groups, strict=True):
        for place in group:
            row[[columns[label] for label in classes[place]] or [-1]] += 1
    filled = np.zeros((folds, counts.shape[1] + 1), np.int64)  # as `counts`, and all images in the last column
    fold_of_group = np.full(len(groups), -1)
    while (waiting := fold_of_group < 0).any():
        left = counts[waiting].sum(axis=0)
        rarest = int(np.argmin(np.where(left > 0, left, np.inf)))
        for number in np.flatnonzero(waiting & (counts[:, rarest] > 0)).tolist():
            fold = min(range(folds), key=lambda fold: (filled[fold, rarest], filled[fold, -1]))
            filled[fold] += [*counts[number], len(groups[number])]
            fold_of_group[number] = fold
    fold_of = np.zeros(len(classes), np.int64)
    for fold, group in zip(fold_of_group.tolist(), groups, strict=True):
        fold_of[group] = fold
    return fold_of


def classes_in_one_fold(data: AnnotatedDataSet) -> list[str]:
    """Return the names of the classes whose images are all in one fold, so that the model without it lacks them."""
    assert data.shards is not None  # set by `divided_into_folds`
    assert data.class_names is not None
    folds_of: dict[int, set[int]] = {}
    for image, fold in zip(data.images, data.shards, strict=True):
        for one in image.objects:
            folds_of.setdefault(one.category_id, set()).add(int(fold))
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
    return [names[number] for number, used in sorted(folds_of.items()) if len(used) == 1]


def pooled(train: AnnotatedDataSet, val: AnnotatedDataSet) -> AnnotatedDataSet:
    """Return the images of both splits as one data set, sorted by name; an image in both has the labels of train.

    Image ids that both use, as in Roboflow's COCO exports, are numbered again.
    """
    trained = {image.file_name for image in train.images}
    others = [image for image in val.images if image.file_name not in trained]
    images = sorted([*train.images, *others], key=lambda image: image.file_name)
    if len({image.image_id for image in images}) < len(images):
        for image, number in zip(images, image_ids([image.file_name for image in images]), strict=True):
            image.image_id = number
    shared = sum(len(image.objects) for image in val.images) - sum(len(image.objects) for image in others)
    return replace(
        train,
        images=images,
        listed_boxes=train.listed_boxes + val.listed_boxes - shared,
        fingerprint=hashlib.sha256(f"{train.fingerprint} {val.fingerprint}".encode()).hexdigest(),
        skipped=[*train.skipped, *val.skipped],
        noted=[*train.noted, *val.noted],
    )
