"""AP on unlabeled images, estimated from statistics of the images and of their detections; a test for drift.

The estimate is a Gaussian process (Rasmussen and Williams 2006, algorithm 2.1) from statistics of a window of images to
AP. It is fitted to the labeled images of the reference, clean and changed in many ways. Its error is measured on kinds
of changes that it was not fitted to.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np

OF_IMAGES = ("brightness", "contrast", "sharpness", "saturation", "structure")
_SIDE = 128  # pixels of the reduced image whose colors and structure are measured
_LENGTH, _NOISE = 0.5, 0.01  # of the Gaussian process; in scaled statistics, and of the variance of AP
_MOST_DEVIATION = 0.5  # of an estimate that is shown, as a share of the reference's AP
_RESAMPLES = 200
_QUANTILE = 1.645  # half of the 90 % interval, in standard deviations


def image_statistics(image: np.ndarray) -> list[float]:
    """Return the values of OF_IMAGES of an image [h, w, 3] uint8; the logarithms of all."""
    small = cv2.resize(image, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    red, green, blue = cv2.split(small)
    gray = cv2.transform(small, np.full((1, 3), 1 / 3))
    colors = cv2.subtract(cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue))
    edges, coarse = (cv2.Laplacian(pixels, cv2.CV_16S) for pixels in (cv2.extractChannel(image, 1), green))
    sharpness, structure = (cv2.norm(one, cv2.NORM_L1) / one.size for one in (edges, coarse))
    return np.log([gray.mean() + 8, gray.std() + 4, sharpness + 0.5, colors.mean() + 8, structure + 0.5]).tolist()


def detection_statistics(
    probabilities: np.ndarray, sizes: np.ndarray, classes: np.ndarray, *, num_classes: int
) -> list[float]:
    """Return sums over the N detections of an image: of squared probabilities, of sizes, and of each class.

    Args:
        probabilities: [N] that a detection is correct.
        sizes: [N] root of the share of the image's area.
        classes: [N], 0 to K-1.
        num_classes: K.
    """
    by_class = np.bincount(classes, probabilities, num_classes)
    return [float(probabilities @ probabilities), float(probabilities @ sizes), *by_class.tolist()]


def window_statistics(means: np.ndarray, objects: float) -> np.ndarray:
    """Return the statistics [..., 8] of windows from the means [..., 7 + K] over their images.

    objects: mean number of labels of an image of the reference.
    """
    first = len(OF_IMAGES)
    squares, sizes, total = means[..., first], means[..., first + 1], means[..., first + 2 :].sum(axis=-1)
    safe = np.maximum(total, 1e-9)
    of_detections = total / objects, squares / safe, np.log(np.maximum(sizes / safe, 0.01))
    return np.concatenate([means[..., :first], np.stack(of_detections, axis=-1)], axis=-1)


class Estimate(NamedTuple):
    """Estimated AP; `deviation` is the part of its error that comes from the unlikeness of the images."""

    ap: float
    low: float
    high: float
    is_trusted: bool

    def __str__(self) -> str:
        """Return a part of a line for the console."""
        interval = f"{self.ap:.3f}, 90 % interval {self.low:.3f} to {self.high:.3f}"
        return interval if self.is_trusted else "unknown, as they are unlike all that is known of"


class Estimator:
    """AP as a function of a window's statistics, learned from C windows of known AP, the first of unchanged images."""

    def __init__(self, statistics: np.ndarray, aps: np.ndarray, kinds: Sequence[str], *, spread: float):
        """Fit the function.

        Args:
            statistics: [C, 8] of `window_statistics`.
            aps: [C].
            kinds: kind of the change of each window.
            spread: standard deviation of the AP of a single image: that of n is `spread` / sqrt(n).
        """
        self.clean, self._scale = float(aps[0]), np.sqrt(((statistics - statistics[0]) ** 2).mean(axis=0)) + 1e-6
        self._first, self._spread = statistics[0], spread
        self._points, self._values = self._scaled(statistics), aps / aps[0] - 1
        names = np.array(kinds)
        errors = [
            abs(mean - self._values[held_out]) / deviation
            for kind in dict.fromkeys(kinds[1:])
            for held_out in [names == kind]
            for mean, deviation in [self._predicted(self._points[held_out], ~held_out)]
        ]
        self._widening = float(np.quantile(np.concatenate(errors), 0.9))

    def estimate(self, images: np.ndarray, *, objects: float, reference_images: int) -> Estimate:
        """Return the estimate for a window of n images with the statistics [n, 7 + K].

        Its error has three parts: what the reference does not know about such images, and the samples of images here
        and in the reference.
        """
        count = len(images)
        draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) / count
        windows = window_statistics(np.concatenate([images.mean(axis=0)[None], draws @ images]), objects)
        means, deviations = self._predicted(self._scaled(windows), np.ones(len(self._points), bool))
        ap = float(np.clip(self.clean * (1 + means[0]), 0, 1))
        sampling = np.hypot(self._spread * np.sqrt(1 / count + 1 / reference_images), self.clean * means[1:].std())
        half = float(np.hypot(self._widening * deviations[0] * self.clean, _QUANTILE * sampling))
        return Estimate(ap, max(ap - half, 0.0), min(ap + half, 1.0), bool(deviations[0] <= _MOST_DEVIATION))

    def _scaled(self, statistics: np.ndarray) -> np.ndarray:
        return (statistics - self._first) / self._scale

    def _predicted(self, points: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the relative change of AP at points [P, 8], from the `used` windows."""
        known = self._points[used]
        covariance = _kernel(known, known) + _NOISE * np.eye(len(known))
        shared = _kernel(known, points)
        weights = np.linalg.solve(covariance, shared)
        return weights.T @ self._values[used], np.sqrt(np.maximum(1 - (shared * weights).sum(axis=0), 1e-9))


def _kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    squares = ((first[:, None] - second) ** 2).mean(axis=-1)
    return np.exp(-squares / (2 * _LENGTH**2))


def drift_p_values(reference: np.ndarray, window: np.ndarray, *, rate: float) -> np.ndarray:
    """Return the p-value of the difference of each statistic [F] between n and m images, [n, F] and [m, F].

    The test compares mean ranks. It is adjusted for the number of statistics by permutations of the images (Westfall
    and Young 1993), so that any p-value is below `rate` in at most that share of windows like the reference.
    """
    values = np.concatenate([reference, window])
    ranks = np.stack([_ranks(column) for column in values.T], axis=1)
    ranks = (ranks - ranks.mean(axis=0)) / (ranks.std(axis=0) + 1e-9)
    is_window = np.zeros(len(values), bool)
    is_window[len(reference) :] = True
    permutations = min(max(2000, round(20 / rate)), 100_000)
    generator, highest = np.random.default_rng(0), np.empty(permutations)
    for number in range(permutations):
        highest[number] = abs(ranks[generator.permutation(is_window)].sum(axis=0)).max()
    differences = abs(ranks[is_window].sum(axis=0))
    return (1 + (highest[:, None] >= differences - 1e-9).sum(axis=0)) / (1 + permutations)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def change_point(reference: np.ndarray, window: np.ndarray) -> int:
    """Return the number of the first image, of n in their order, from which a statistic [n] differs (CUSUM)."""
    deviations = window - reference.mean()
    sums = np.cumsum(np.sign(deviations.sum()) * deviations - abs(deviations.mean()) / 2)
    return int(np.argmin(np.append(0, sums[:-1])))
