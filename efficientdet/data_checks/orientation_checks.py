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
_FIT = 0.5  # share of images that fit into the input when rotated, from which rotations are suggested


class Preference(NamedTuple):
    """Signs of a preferred orientation, each 0 (none) to about 1: root mean square of the classes' values.

    Classes count by their objects. Noise of few objects increases the values.
    """

    height: float  # mean vertical position of the centers from the middle; unit: standard deviation if uniform
    shape: float  # mean of log(width / height), relative to its root mean square: 1 if all are wide or all are tall
    perspective: float  # correlation of log(area) with the vertical position


_MOST = Preference(height=0.25, shape=0.45, perspective=0.2)


def orientation_preference(images: LabeledImages) -> Preference | None:
    """Return the signs of a preferred orientation, from boxes that are no crowds; None if these are too few."""
    sizes = images.sizes[images.owners].astype(float)
    sides = np.maximum(images.boxes[:, 2:] - images.boxes[:, :2], 1e-3)
    heights = (images.boxes[:, 0] + images.boxes[:, 2]) / 2 / sizes[:, 0] - 0.5
    shapes, areas = np.log(sides[:, 1] / sides[:, 0]), np.log(sides.prod(axis=1) / sizes.prod(axis=1))
    counts = np.bincount(images.classes[~images.crowd], minlength=len(images.class_names))
    often = np.flatnonzero(counts >= _OBJECTS_OF_A_CLASS)
    if np.sum(images.counts() > 0) < _IMAGES or not len(often):
        return None
    rows = []
    for number in often:
        mine = (images.classes == number) & ~images.crowd
        height, shape, area = heights[mine], shapes[mine], areas[mine] - areas[mine].mean()
        spread = np.sqrt(np.mean(area**2)) * height.std()
        rows.append(
            Preference(
                height=height.mean() * np.sqrt(12),
                shape=shape.mean() / max(np.sqrt(np.mean(shape**2)), 1e-6),
                perspective=np.mean(area * height) / max(spread, 1e-6),
            )
        )
    return Preference(*np.sqrt(np.average(np.square(rows), axis=0, weights=counts[often])))


def orientation_findings(view: InputView) -> Iterator[Finding]:
    """Yield a finding if the objects have no preferred orientation and the training does not use that yet."""
    preference = orientation_preference(view.images)
    if preference is None or any(value > most for value, most in zip(preference, _MOST, strict=True)):
        return
    fits = np.mean(np.all(view.scaled[:, ::-1] <= view.size, axis=1)) >= _FIT
    useful = {"input_rand_vflip": True, **({"input_rand_rot90": True} if fits else {})}
    settings = {key: value for key, value in useful.items() if not getattr(view.hparams, key)}
    if settings:
        values = ", ".join(
            f"{name} {value:.2f} of at most {most:g}"
            for name, value, most in zip(Preference._fields, preference, _MOST, strict=True)
        )
        yield Finding(
            about="orientation",
            level=NOTE,
            settings=settings,
            line=f"the objects have no preferred orientation ({values}): {as_hparams(settings)} trains on others too",
        )
