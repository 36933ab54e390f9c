"""What the pictures tell: which cannot be decoded, are dark or blank, or are the same, within a split and across."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dataset.conversion.image_looks import ImageLooks
from dataset.conversion.perceptual_hash import near_duplicates
from dataset.labelled_images import LabelledImages
from efficientdet.doctor.findings import NOTE, WARNING, Finding, counted, named, share

DARK, BRIGHT, BLANK = 25.0, 235.0, 4.0  # grey levels of 255: mean, mean, standard deviation
_MANY_TWINS = 0.05
_OTHER_SIZE = "are not of the size that their labels say (another picture, or turned by its EXIF tag)"
_ALARMING = ("cannot be decoded", _OTHER_SIZE)
Looks = Mapping[int, ImageLooks | None]
Pair = tuple[tuple[int, int], tuple[int, int], bool]


def picture_findings(images: LabelledImages, looks: Looks) -> Iterator[Finding]:
    """Of one split; `looks` of those of its images that were read."""
    of = {"cannot be decoded": [number for number, found in looks.items() if found is None],
          _OTHER_SIZE: [number for number, found in looks.items() if found and found.size != tuple(images.sizes[number])],
          "are nearly black": _where(looks, lambda found: found.brightness < DARK),
          "are nearly white": _where(looks, lambda found: found.brightness > BRIGHT),
          "show nothing but one colour": _where(looks, lambda found: found.contrast < BLANK)}
    for what, numbers in of.items():
        if numbers:
            names = [images.names[number] for number in numbers]
            yield Finding(about="images", level=WARNING if what in _ALARMING else NOTE, images=names,
                          line=f"{len(names)} of {len(looks)} {what}: {named(names)}")


def same_pictures(splits: Sequence[LabelledImages], looks: Sequence[Looks]) -> list[Pair]:
    """Pairs of images that are the same picture, each (split, number) twice, and whether their files are equal.

    Equal files are found among all whose digests the records tell, near ones among those that were read.
    """
    first, found = {}, {}
    for split, images in enumerate(splits):
        for number, digest in enumerate(images.digests):
            look = looks[split].get(number)
            digest = digest.decode("ascii", "replace") or (look.digest.hex() if look else "")
            if digest and (other := first.setdefault(digest, (split, number))) != (split, number):
                found[other, (split, number)] = True
    places = [(split, number) for split, some in enumerate(looks) for number, look in some.items()
              if look is not None and look.contrast >= BLANK]
    hashes = [looks[split][number].hash for split, number in places]
    for one, other in near_duplicates(hashes):
        found.setdefault((places[one], places[other]), False)
    return [(one, other, equal) for (one, other), equal in sorted(found.items())]


def same_picture_findings(splits: Sequence[LabelledImages], pairs: Sequence[Pair]) -> Iterator[Finding]:
    """The same picture in both splits, which an evaluation is worth less by; and twice in one."""
    def told(some: Sequence[Pair]) -> list[str]:
        return [f"{splits[one[0]].names[one[1]]} and {splits[other[0]].names[other[1]]}" for one, other, _ in some]

    if across := [pair for pair in pairs if pair[0][0] != pair[1][0]]:
        exact = sum(equal for *_, equal in across)
        yield Finding(about="images in both splits", level=WARNING, images=told(across), line=(
            f"{counted(len(across), 'picture is', 'pictures are')} in the training and in the validation images ({exact} the "
            f"same file, {len(across) - exact} nearly): {named(told(across))}; the AP will be too good, keep them on one side"))
    if within := [pair for pair in pairs if pair[0][0] == pair[1][0]]:
        many = len(within) > _MANY_TWINS * sum(map(len, splits))
        yield Finding(about="images twice", level=WARNING if many else NOTE, images=told(within), line=(
            f"{counted(len(within), 'pair', 'pairs')} of images of one split are the same picture, or nearly: "
            f"{named(told(within))}"))


def split_findings(training: LabelledImages, validation: LabelledImages) -> Iterator[Finding]:
    """Classes that only one of both has."""
    counts = [np.bincount(images.classes, minlength=len(images.class_names)) for images in (training, validation)]
    names = np.array(training.class_names.names)
    for level, mine, other, what in ((WARNING, 1, 0, "validation"), (NOTE, 0, 1, "training")):
        alone = (counts[mine] > 0) & (counts[other] == 0)
        lost = counts[mine][alone].sum() / max(counts[mine].sum(), 1)
        # one or two objects of a rare class are chance, as in any sample; what chance would not do is alarming
        unlikely = alone & (counts[mine] / max(counts[mine].sum(), 1) * counts[other].sum() > 10)
        if alone.any():
            told = [f"{name} ({count})" for name, count in zip(names[alone], counts[mine][alone], strict=True)]
            yield Finding(about="classes in one split", level=level if unlikely.any() else NOTE, line=(
                f"{counted(alone.sum(), 'class has', 'classes have')} objects in the {what} images alone ({share(lost)} of "
                f"their objects): {named(told)}"))


def _where(looks: Looks, condition) -> list[int]:
    return [number for number, found in looks.items() if found is not None and condition(found)]
