"""Finding that the objects have no preferred orientation, which permits vertical flips and rotations in training.

Brightness is not a sign of it: microscopes light the upper and the lower half unequally, more so than the sky does.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.findings import NOTE, Finding, as_hparams
from efficientdet.data_checks.input_view import InputView

_IMAGES, _OBJECTS_OF_A_CLASS = 50, 20  # fewer give no reliable measures
_GROUPS, _DEVIATIONS = 20, 1.64  # the jackknife's groups of images; one-sided 95% confidence
_FIT = 0.5  # share of images that fit into the input when rotated, from which rotations are suggested


class Preference(NamedTuple):
    """Signs of a preferred orientation, each 0 (none) to about 1: root mean square of the classes' values.

    Classes count by their objects. Noise of few objects increases the values.
    """

    height: float  # mean vertical position of the centers from the middle; unit: standard deviation if uniform
    shape: float  # mean of log(width / height), relative to its root mean square: 1 if all are wide or all are tall
    perspective: float  # correlation of log(area) with the vertical position


_MOST = Preference(height=0.25, shape=0.45, perspective=0.2)


def orientation_preference(images: LabeledImages) -> tuple[Preference, Preference] | None:
    """Return the signs of a preferred orientation and their margins, from boxes that are no crowds; None if too few.

    With 95% confidence a sign is at most its value plus its margin, by the delete-one-group jackknife (Quenouille
    1956) over groups of images: the objects of one image are not independent.
    """
    moments = _moments(images)
    often = np.flatnonzero(moments.sum(axis=0)[:, 0] >= _OBJECTS_OF_A_CLASS)
    if np.sum(images.counts() > 0) < _IMAGES or not len(often):
        return None
    total = moments[:, often].sum(axis=0)
    without = np.array([_preference(total - group) for group in moments[:, often]])
    errors = np.sqrt((_GROUPS - 1) / _GROUPS * np.square(without - without.mean(axis=0)).sum(axis=0))
    return Preference(*_preference(total)), Preference(*(_DEVIATIONS * errors))


def _moments(images: LabeledImages) -> np.ndarray:
    """Return sums over the objects of each group of images and each class, [groups, K, 8]; see `_preference`."""
    used, sizes = ~images.crowd, images.sizes[images.owners].astype(float)
    sides = np.maximum(images.boxes[:, 2:] - images.boxes[:, :2], 1e-3)
    height = (images.boxes[:, 0] + images.boxes[:, 2]) / 2 / sizes[:, 0] - 0.5
    shape, area = np.log(sides[:, 1] / sides[:, 0]), np.log(sides.prod(axis=1) / sizes.prod(axis=1))
    count = len(images.class_names)
    place = (images.owners % _GROUPS * count + images.classes)[used]
    values = (np.ones_like(height), height, height**2, shape, shape**2, area, area**2, area * height)
    sums = [np.bincount(place, weights=value[used], minlength=_GROUPS * count) for value in values]
    return np.stack(sums, axis=-1).reshape(_GROUPS, count, len(values))


def _preference(sums: np.ndarray) -> np.ndarray:
    """Return the three signs from the sums of each class, [K, 8]."""
    counts = np.maximum(sums[:, 0], 1)
    height, height_squared, shape, shape_squared, area, area_squared, both = (sums[:, 1:] / counts[:, None]).T
    spread = np.sqrt(np.clip((height_squared - height**2) * (area_squared - area**2), 0, None))
    signs = (
        height * np.sqrt(12),
        shape / np.maximum(np.sqrt(shape_squared), 1e-6),
        (both - area * height) / np.maximum(spread, 1e-6),
    )
    return np.sqrt(np.average(np.square(signs), axis=1, weights=counts))


def orientation_findings(view: InputView) -> Iterator[Finding]:
    """Yield a finding if the objects have no preferred orientation and the training does not use that yet."""
    preference = orientation_preference(view.images)
    if preference is None or any(value + margin > most for value, margin, most in zip(*preference, _MOST, strict=True)):
        return
    fits = np.mean(np.all(view.scaled[:, ::-1] <= view.size, axis=1)) >= _FIT
    useful = {"input_rand_vflip": True, **({"input_rand_rot90": True} if fits else {})}
    settings = {key: value for key, value in useful.items() if not getattr(view.hparams, key)}
    if settings:
        values = ", ".join(
            f"{name} {value:.2f} + {margin:.2f}, limit {most:g}"
            for name, value, margin, most in zip(Preference._fields, *preference, _MOST, strict=True)
        )
        yield Finding(
            about="orientation",
            level=NOTE,
            settings=settings,
            line=f"the objects have no preferred orientation ({values}): {as_hparams(settings)} trains on others too",
        )
