"""Split images into train and val, stratified by class; find near-duplicates by thumbnails.

Near-duplicates and groups of images stay together. Near-duplicates are copies at another size, quality or brightness,
and consecutive frames of a video. Two thumbnails must meet two conditions. Their difference hashes (which cells are
brighter than the cell to their left) differ in at most `MOST_BITS` of 256 bits, and their cells have a correlation of
at least `LEAST_CORRELATION`. The hash alone is not sufficient: in images with plain areas, such as documents or night
scenes, most bits are 0 in any case.
"""

import contextlib
import hashlib
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage
from dataset.conversion.conversion_options import BY_FOLDER
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import splits_by_name
from dataset.files.image_files import read_stored_image, stored_size
from dataset.files.image_formats import DECODING_ERRORS, FORMATS
from dataset.files.pixel_values import FULL_RANGE, ValueRange, as_rgb
from dataset.records.labeled_records import LabeledImages
from program_support.errors import InputError
from program_support.processor import available_cores
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


HASH_SIDE = 16  # cells; with 8 the hashes of some different photos are closer than those of copies
HASH_BITS = HASH_SIDE * HASH_SIDE
MOST_BITS = 32
LEAST_CORRELATION = 0.9  # copies of other brightness or contrast have 0.97, frames shifted by 1% of their width 0.94
LEAST_CONTRAST = 2.0  # gray levels, standard deviation of the cells; below it they show noise and vignetting
_PAIRS_AT_ONCE = 1 << 22  # 16 MiB for each of two products
_MOST_SIDE = 256  # pixels of the longer side; JPEGs are decoded at the smallest sufficient scale


class ImageStatistics(NamedTuple):
    """SHA-256 of a file, stored height and width of its image, and thumbnail."""

    digest: bytes
    size: tuple[int, int]
    thumbnail: np.ndarray


def measure_images(
    images: LabeledImages, numbers: Iterable[int], *, done: Callable[[], None] = lambda: None
) -> dict[int, ImageStatistics | None]:
    """Return statistics of the images with these numbers, None for undecodable ones. `done` is called after each."""
    numbers = [int(number) for number in numbers]
    statistics = {}
    with ThreadPoolExecutor(available_cores()) as pool:
        for number, measured in zip(
            numbers, pool.map(lambda number: _measured(images.encoded, number), numbers), strict=True
        ):
            statistics[number] = measured
            done()
    return statistics


def decode_reduced(encoded: bytes, side: int) -> np.ndarray:
    """Decode an image, reduced to at most `side` pixels: uint8 [h, w, 3].

    Raises:
        ValueError: undecodable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(encoded), formats=FORMATS) as file:
                file.draft("RGB", (side, side))
                image = Image.fromarray(as_rgb(file))
            image.thumbnail((side, side))
            return np.asarray(image)
        except DECODING_ERRORS as error:
            raise ValueError("cannot be decoded") from error


def _measured(encoded: Callable[[int], bytes], number: int) -> ImageStatistics | None:
    with contextlib.suppress(ValueError, OSError, InputError):
        data = encoded(number)
        pixels = decode_reduced(data, _MOST_SIDE)
        return ImageStatistics(
            digest=hashlib.sha256(data).digest(),
            size=stored_size(data),
            thumbnail=thumbnail(pixels),
        )
    return None


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Return the gray cells, uint8 [HASH_SIDE, HASH_SIDE + 1], of an RGB image uint8 [h, w, 3] of any size."""
    luminance = Image.fromarray(image).convert("L")
    return np.asarray(luminance.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX))


def near_duplicates(thumbnails: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Return pairs (i, j) of indices of near-duplicates, i < j, in ascending order.

    All pairs are compared, by matrix products: 2 s of a core for 10,000 images, 100 times as long for 100,000.
    """
    cells = np.array(thumbnails, np.float32).reshape(-1, HASH_SIDE, HASH_SIDE + 1)
    # a product of two rows is the number of equal bits minus the number of different bits
    signs = np.where(cells[:, :, 1:] > cells[:, :, :-1], np.float32(1), np.float32(-1)).reshape(-1, HASH_BITS)
    directions = _directions(cells.reshape(-1, HASH_SIDE * (HASH_SIDE + 1)))
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(cells)))
    pairs = []
    for start in range(0, len(cells), rows):
        block = slice(start, start + rows)
        alike = signs[block] @ signs[start:].T >= HASH_BITS - 2 * MOST_BITS
        alike &= directions[block] @ directions[start:].T >= LEAST_CORRELATION
        first, second = np.nonzero(alike)
        pairs += [(start + i, start + j) for i, j in zip(first.tolist(), second.tolist(), strict=True) if i < j]
    return pairs


def _directions(cells: np.ndarray) -> np.ndarray:
    """Return rows whose products are correlations, [N, cells]; zeros for an image without contrast."""
    centered = cells - cells.mean(axis=1, keepdims=True)
    contrast = cells.std(axis=1, keepdims=True)
    return (
        np.where(contrast >= LEAST_CONTRAST, centered / np.maximum(contrast, LEAST_CONTRAST), 0) / cells.shape[1] ** 0.5
    )
