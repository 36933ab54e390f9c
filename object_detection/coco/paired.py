"""Paired differences of two detectors on the same images, with intervals and the probability of a gain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.bootstrap import Samples, interval
from object_detection.coco.measures import MEASURE_NAMES

_OF_CLASSES = {name: MEASURE_NAMES.index(name) for name in ("AP", "AP50", "AP75", "APs", "APm", "APl")}


class Difference(NamedTuple):
    """Difference of a metric, second detector minus first."""

    value: float
    low: float  # 95 % interval
    high: float
    probability: float  # that the second detector is better: share of the resamples, ties half

    @property
    def verdict(self) -> str:
        """Return `better` or `worse` if the interval excludes 0, else `no difference shown`."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no difference shown"


class PairedDifferences(NamedTuple):
    """All differences of a pair; a metric that cannot be measured is left out."""

    name: str
    numbers: dict[str, Difference]  # the 12 metrics
    classes: dict[str, dict[str, Difference]]  # AP, AP50, AP75 and AP by size of each class

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`."""
        return {
            "pair": self.name,
            "numbers": {name: one._asdict() for name, one in self.numbers.items()},
            "classes": {
                name: {metric: one._asdict() for metric, one in metrics.items()}
                for name, metrics in self.classes.items()
            },
        }


def paired_differences(
    name: str, first: Samples, second: Samples, *, classes: Sequence[str], images: int
) -> PairedDifferences:
    """Return the differences of two detectors whose samples come from the same resamples of `images` images."""

    def measured(values: dict[str, np.ndarray]) -> dict[str, Difference]:
        found = {metric: _difference(samples, images=images) for metric, samples in values.items()}
        return {metric: one for metric, one in found.items() if not np.isnan(one.low)}

    by_class = second.by_class - first.by_class
    return PairedDifferences(
        name,
        measured(dict(zip(MEASURE_NAMES, second.numbers - first.numbers, strict=True))),
        {
            name: measured({metric: of_class[at] for metric, at in _OF_CLASSES.items()})
            for name, of_class in zip(classes, by_class, strict=True)
        },
    )


def _difference(samples: np.ndarray, *, images: int) -> Difference:
    present = samples[1:][~np.isnan(samples[1:])]
    shifted = present + (samples[0] - present.mean()) if present.size else present
    better = float(((shifted > 0) + 0.5 * (shifted == 0)).mean()) if present.size else np.nan
    return Difference(float(samples[0]), *interval(samples, images=images), better)
