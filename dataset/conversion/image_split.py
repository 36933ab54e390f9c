"""Split images into train and val, stratified by class; groups of images and near-duplicates stay together."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage
from dataset.conversion.conversion_options import BY_FOLDER
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.image_statistics import near_duplicates, thumbnail
from dataset.conversion.named_splits import splits_by_name
from dataset.files.image_files import read_stored_image
from dataset.files.pixel_values import FULL_RANGE, ValueRange
from program_support.errors import InputError
from program_support.progress import Progress
from program_support.remote_addresses import read_ahead

_LEAST_SIDE = 128  # pixels that a thumbnail is computed from: several for each of its cells


def split_off(
    data: AnnotatedDataSet,
    images: ImageFolder,
    *,
    fraction: float,
    seed: int,
    group_by: str | None = None,
    value_range: ValueRange = FULL_RANGE,
    earlier: Mapping[str, str] | None = None,
) -> tuple[AnnotatedDataSet, AnnotatedDataSet, int]:
    """Return train, val, and the number of images that follow a near-duplicate or another of their group.

    The split depends only on seed, names, content and classes of the images, and on `earlier`, the split of images by
    file name: they stay there, and images of their groups join them. Without it few images change their split if
    others are added. group_by: see `image_groups`. value_range: see `as_rgb`.

    Raises:
        InputError: no image can be used for val.
    """
    groups = image_groups(data.images, images, group_by=group_by, value_range=value_range)
    names, were_in_val = [image.file_name for image in data.images], {}
    groups_to_split = groups
    if earlier:
        were_in_val = {place: earlier[name] == "val" for place, name in enumerate(names) if name in earlier}
        groups_to_split = [part for group in groups for part in _by_earlier_split(group, were_in_val)]
    aside = stratified_groups(
        [{one.category_id for one in image.objects} for image in data.images],
        groups_to_split,
        names,
        fraction=fraction,
        seed=seed,
        were_in_val=were_in_val,
    )
    chosen = {place for group in aside for place in group}
    if not chosen or len(chosen) == len(data.images):
        if earlier and not any(were_in_val.values()):
            gone = [name for name, split in earlier.items() if split == "val"]
            raise InputError(
                f"none of the {len(gone)} images that were in val is left, such as {', '.join(gone[:1])}, and no other "
                "can be used for validation; put some back"
            )
        raise InputError(
            f"--val_fraction={fraction:g}: of {len(names)} images in {len(groups)} groups of near-duplicates"
            f"{f' and of --group_by={group_by}' if group_by else ''}, none can be used for validation unless training "
            "loses a class; expected more images, or --val_fraction=0"
        )
    parts = splits_by_name(
        replace(data, split_from=(data.listed_images, data.listed_boxes)),
        ["val" if place in chosen else "train" for place in range(len(names))],
    )
    train, val = (
        replace(
            parts[split],
            fingerprint=hashlib.sha256(
                f"{data.fingerprint} {[image.file_name for image in parts[split].images]}".encode()
            ).hexdigest(),
        )
        for split in ("train", "val")
    )
    return train, val, len(names) - len(groups)


def _by_earlier_split(group: list[int], were_in_val: Mapping[int, bool]) -> list[list[int]]:
    """Return the parts of a group: images of val, others; images that had no split join the first that had one."""
    side = next((were_in_val[place] for place in group if place in were_in_val), False)
    parts: dict[bool, list[int]] = {}
    for place in group:
        parts.setdefault(were_in_val.get(place, side), []).append(place)
    return [*parts.values()]


def image_groups(
    images: Sequence[AnnotatedImage], folder: ImageFolder, *, group_by: str | None, value_range: ValueRange
) -> list[list[int]]:
    """Return the numbers of the images that must not be separated: near-duplicates, and those of one --group_by.

    Args:
        images: the n images.
        folder: their folder.
        group_by: `folder`, or a regular expression that is searched in the file names and whose group names the group;
            an image without a match has no group. None: only near-duplicates.
        value_range: see `as_rgb`.

    Raises:
        InputError: the expression matches no file name.
    """
    keys: list[str | None] = [None] * len(images)
    if group_by == BY_FOLDER:
        keys = [str(PurePosixPath(image.file_name).parent) for image in images]
    elif group_by:
        matches = [re.search(group_by, image.file_name) for image in images]
        keys = [match and match[1] for match in matches]
        if not any(matches):
            raise InputError(f"--group_by={group_by}: matches no file name, such as {images[0].file_name}")
    return alike_groups(
        [_thumbnail_of(image, folder, value_range) for image in _with_progress(images, folder.folder)], keys
    )


def _with_progress(images: Sequence[AnnotatedImage], folder: Path) -> Iterator[AnnotatedImage]:
    with Progress("compare", total=len(images), noun="image", slow_start=True) as progress:
        for image in read_ahead(images, folder):
            yield image
            progress.advance(images=1)


def _thumbnail_of(image: AnnotatedImage, images: ImageFolder, value_range: ValueRange) -> np.ndarray | None:
    """Return the thumbnail; None for an incomplete image, which the conversion reports."""
    try:
        path = str(images.path(image.file_name))
        return thumbnail(read_stored_image(path, least_side=_LEAST_SIDE, value_range=value_range).pixels)
    except InputError:
        return None


def alike_groups(thumbnails: Sequence[np.ndarray | None], keys: Sequence[str | None] = ()) -> list[list[int]]:
    """Return groups of indices of near-duplicates and of equal keys, joined transitively; None is like no other."""
    known = {place: thumbnail for place, thumbnail in enumerate(thumbnails) if thumbnail is not None}
    places, first_with = [*known], dict[str, int]()
    same_key = [(first_with.setdefault(key, place), place) for place, key in enumerate(keys) if key is not None]
    group_of = [[place] for place in range(len(thumbnails))]
    for i, j in [*((places[i], places[j]) for i, j in near_duplicates([*known.values()])), *same_key]:
        smaller, larger = sorted((group_of[i], group_of[j]), key=len)
        if smaller is not larger:
            larger += smaller
            for place in smaller:
                group_of[place] = larger
    return [sorted(group) for group in {id(group): group for group in group_of}.values()]


def stratified_groups(
    classes: Sequence[set[int]],
    groups: Sequence[list[int]],
    names: Sequence[str],
    *,
    fraction: float,
    seed: int,
    were_in_val: Mapping[int, bool] | None = None,
) -> list[list[int]]:
    """Return the groups for val, with about this fraction of the images of each class and of all images.

    Iterative stratification, rarest class first (Sechidis et al. 2011); images without objects are a class of their
    own. Groups with an image in `were_in_val` stay in the split that it tells.
    """
    # By hash instead of a permutation: further images leave the order of the others as it is
    groups = sorted(groups, key=lambda group: hashlib.sha256(f"{seed} {names[group[0]]}".encode()).digest())
    counts: list[Counter[int | None]] = [
        Counter(label for place in group for label in classes[place] or (None,)) for group in groups
    ]
    in_training = sum(counts, Counter())  # images of each class that training has
    targets = Counter({label: fraction * count for label, count in in_training.items()})
    room, aside, waiting = fraction * len(classes), [], dict(enumerate(counts))

    def keep_aside(number: int, *, room: float) -> float:
        aside.append(groups[number])
        in_training.subtract(counts[number])
        targets.subtract(counts[number])
        return room - len(groups[number])

    def fits(number: int) -> bool:
        """Return whether the group brings val closer to the fraction and leaves train an image of every class."""
        return len(groups[number]) <= 2 * room and all(
            in_training[label] > count for label, count in counts[number].items()
        )

    earlier = were_in_val or {}
    for number, group in enumerate(groups):
        if splits := {earlier[place] for place in group if place in earlier}:
            del waiting[number]
            if True in splits:
                room = keep_aside(number, room=room)
    left_over = []
    while waiting:
        waiting_per_class = Counter(label for count in waiting.values() for label in count)
        rarest = min(waiting_per_class, key=lambda label: (waiting_per_class[label], label is None, label or 0))
        for number in [number for number, count in waiting.items() if rarest in count]:
            count = waiting.pop(number)
            if count[rarest] <= 2 * targets[rarest] and fits(number):
                room = keep_aside(number, room=room)
            else:
                left_over.append(number)
    for number in left_over:  # groups of classes too rare to reach the fraction
        if fits(number):
            room = keep_aside(number, room=room)
    return aside
