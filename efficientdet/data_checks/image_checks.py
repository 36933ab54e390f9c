"""Findings about image contents: undecodable, dark or blank images, copies and near-duplicates."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dataset.conversion.image_statistics import ImageStatistics
from dataset.conversion.near_duplicates import near_duplicates
from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.findings import Finding, counted, named, share

_DARK, _BRIGHT, _BLANK = 25.0, 235.0, 4.0  # gray levels of 255: mean, mean, standard deviation
_MANY_ALIKE = 0.05
Statistics = Mapping[int, ImageStatistics | None]
Pair = tuple[tuple[int, int], tuple[int, int], bool]


def image_findings(images: LabeledImages, statistics: Statistics) -> Iterator[Finding]:
    """Yield findings about the images of a split; `statistics` are measurements of the images that were read."""
    read = {number: measured for number, measured in statistics.items() if measured}
    for about, is_warning, what, numbers in (
        ("undecodable images", True, "cannot be decoded", statistics.keys() - read.keys()),
        (
            "images of another size",
            True,
            "differ in size from their labels (another image, or EXIF rotation)",
            [number for number, measured in read.items() if measured.size != tuple(images.sizes[number])],
        ),
        (
            "dark images",
            False,
            "are nearly black",
            [number for number, measured in read.items() if measured.brightness < _DARK],
        ),
        (
            "bright images",
            False,
            "are nearly white",
            [number for number, measured in read.items() if measured.brightness > _BRIGHT],
        ),
        (
            "blank images",
            False,
            "are a single color",
            [number for number, measured in read.items() if measured.contrast < _BLANK],
        ),
    ):
        if numbers:
            names = [images.names[number] for number in sorted(numbers)]
            line = f"{len(names)} of {len(statistics)} {what}: {named(names)}"
            yield Finding(about, is_warning, line, images=names)


def alike_images(splits: Sequence[LabeledImages], statistics: Sequence[Statistics]) -> list[Pair]:
    """Return pairs of identical or similar images, each as two (split, number) and whether their files are identical.

    Identical files are found among all images with digests in the records, near-duplicates among the images that were
    read.
    """
    first: dict[str, tuple[int, int]] = {}
    pairs: dict[tuple[tuple[int, int], tuple[int, int]], bool] = {}
    thumbnails: dict[tuple[int, int], np.ndarray] = {}
    for split, images in enumerate(splits):
        for number, stored in enumerate(images.digests):
            measured = statistics[split].get(number)
            if measured is not None:
                thumbnails[split, number] = measured.thumbnail
            digest = stored.decode("ascii", "replace") or (measured.digest.hex() if measured else "")
            if digest and (other := first.setdefault(digest, (split, number))) != (split, number):
                pairs[other, (split, number)] = True
    places = [*thumbnails]
    for i, j in near_duplicates([*thumbnails.values()]):
        pairs.setdefault((places[i], places[j]), False)
    return [(one, other, equal) for (one, other), equal in sorted(pairs.items())]


def alike_image_findings(splits: Sequence[LabeledImages], pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Yield findings about copies and near-duplicates across splits, which raise the measured AP, and in one split."""
    for equal, what in ((True, "with identical files"), (False, "that look alike (possible near-duplicates)")):
        across, within = (
            [
                f"{splits[one[0]].names[one[1]]} and {splits[other[0]].names[other[1]]}"
                for one, other, same in pairs
                if same == equal and (one[0] != other[0]) == in_both
            ]
            for in_both in (True, False)
        )
        about = "copies" if equal else "near-duplicates"
        if across:
            harm = "the AP will be too high" if equal else "if they show the same scene, the AP will be too high"
            yield Finding(
                f"{about} in both splits",
                True,
                f"{counted(len(across), 'pair', 'pairs')} of a training and a validation image {what}: "
                f"{named(across)}; {harm}; keep each pair in one split",
                images=across,
            )
        if within:
            line = f"{counted(len(within), 'pair', 'pairs')} of images of one split {what}: {named(within)}"
            yield Finding(about, len(within) > _MANY_ALIKE * sum(map(len, splits)), line, images=within)


def split_findings(training: LabeledImages, validation: LabeledImages) -> Iterator[Finding]:
    """Yield findings about classes that only one of the two splits has."""
    counts = [np.bincount(images.classes, minlength=len(images.class_names)) for images in (training, validation)]
    names = np.array(training.class_names.names)
    for mine, other, what in ((1, 0, "validation"), (0, 1, "training")):
        alone = (counts[mine] > 0) & (counts[other] == 0)
        lost = counts[mine][alone].sum() / max(counts[mine].sum(), 1)
        # One or two objects of a rare class may be due to chance; only a less likely difference is a warning.
        unlikely = alone & (counts[mine] / max(counts[mine].sum(), 1) * counts[other].sum() > 10)
        if alone.any():
            listed = [f"{name} ({count})" for name, count in zip(names[alone], counts[mine][alone], strict=True)]
            yield Finding(
                "classes in one split",
                what == "validation" and bool(unlikely.any()),
                f"{counted(alone.sum(), 'class has', 'classes have')} objects only in the {what} images "
                f"({share(lost)} of their objects): {named(listed)}",
            )
