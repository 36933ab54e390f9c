"""AP, precision and recall on unlabeled images, estimated from statistics; a test for drift.

The estimate is a Gaussian process (Rasmussen and Williams 2006, algorithm 2.1) from statistics of a window of images to
each measure. It is fitted to the labeled images of the reference, clean and changed in many ways. Its error is measured
on kinds of changes that it was not fitted to.
"""

import io
import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from dataset.conversion.upright_labels import JPEG_QUALITY

MEASURES = ("ap", "precision", "recall")  # the last two of the detections that reach the threshold, at IoU 0.5
OF_IMAGES = ("brightness", "contrast", "sharpness", "saturation", "structure")
_SIDE = 128  # pixels of the reduced image whose colors and structure are measured
_STRIPS, _ROWS = 4, 16  # of pixels, whose sharpness is measured with the losses of JPEG, which records have
_LENGTH, _NOISE = 0.5, 0.01  # of the Gaussian process; in scaled statistics, and of the variance of AP
_MOST_DEVIATION = 0.5  # of an estimate that is shown, as a share of the reference's AP
_RESAMPLES = 200
_LEAST = 0.01  # measure on the reference; a lower one is of a few detections
_QUANTILE = 1.645  # half of the 90 % interval, in standard deviations


def as_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    """Return the image [h, w, 3] with the losses of a JPEG file."""
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=quality, subsampling=0)
    return np.asarray(Image.open(stream))


def image_statistics(image: np.ndarray) -> list[float]:
    """Return the values of OF_IMAGES of an image [h, w, 3] uint8; the logarithms of all."""
    if min(image.shape[:2]) < 2 * _SIDE:
        image = as_jpeg(image, JPEG_QUALITY)  # as in records; reduced images hardly differ
    small = image
    while min(small.shape[:2]) >= 2 * _SIDE:  # several times as fast as one reduction
        small = cv2.resize(small, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
    small = cv2.resize(small, (_SIDE, _SIDE))
    red, green, blue = cv2.split(small)
    brightness, contrast = cv2.meanStdDev(cv2.transform(small, np.full((1, 3), 1 / 3)))
    colors = cv2.subtract(cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue))
    sharpness, structure = _sharpness(_strips(image)), _sharpness([green])
    values = brightness.item() + 8, contrast.item() + 4, sharpness + 0.5, cv2.mean(colors)[0] + 8, structure + 0.5
    return [*map(math.log, values)]


def _strips(image: np.ndarray) -> list[np.ndarray]:
    """Return strips of the gray image with the losses of a JPEG file, as records have them."""
    last = max(len(image) - _ROWS, 0) // 8  # number of a block of a JPEG
    tops = [8 * (last * strip // (_STRIPS - 1)) for strip in range(_STRIPS)]
    gray = cv2.cvtColor(np.vstack([image[top : top + _ROWS] for top in tops]), cv2.COLOR_RGB2GRAY)
    _, content = cv2.imencode(".jpg", gray, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return np.split(np.asarray(cv2.imdecode(content, cv2.IMREAD_GRAYSCALE)), _STRIPS)


def _sharpness(parts: Sequence[np.ndarray]) -> float:
    return sum(cv2.norm(cv2.Laplacian(part, cv2.CV_16S), cv2.NORM_L1) / part.size for part in parts) / len(parts)


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
    """Estimate of one of MEASURES."""

    value: float
    low: float
    high: float
    is_trusted: bool

    def __str__(self) -> str:
        """Return a part of a line for the console."""
        interval = f"{self.value:.3f}, 90 % interval {self.low:.3f} to {self.high:.3f}"
        return interval if self.is_trusted else "unknown, as too little is known of such images"


class Estimator:
    """MEASURES as functions of a window's statistics, learned from C evaluated windows, the first one unchanged."""

    def __init__(self, statistics: np.ndarray, measures: np.ndarray, kinds: Sequence[str], *, spread: np.ndarray):
        """Fit the functions.

        Args:
            statistics: [C, 8] of `window_statistics`.
            measures: [C, 3].
            kinds: kind of the change of each window.
            spread: [3] standard deviations of the measures of a single image: those of n are `spread` / sqrt(n).
        """
        self._clean, self._scale = measures[0], np.sqrt(((statistics - statistics[0]) ** 2).mean(axis=0)) + 1e-6
        self._first, self._spread = statistics[0], spread
        self._points, self._values = self._scaled(statistics), measures / np.maximum(measures[0], _LEAST) - 1
        names = np.array(kinds)
        errors = [
            abs(mean - self._values[held_out]) / deviation[:, None]
            for kind in dict.fromkeys(kinds[1:])
            for held_out in [names == kind]
            for mean, deviation in [self._predicted(self._points[held_out], ~held_out)]
        ]
        self._widening = np.quantile(np.concatenate(errors), 0.9, axis=0)

    def estimates(self, images: np.ndarray, *, objects: float, reference_images: int) -> dict[str, Estimate]:
        """Return the estimate of each measure for a window of n images with the statistics [n, 7 + K].

        Their error has three parts: what the reference does not know about such images, and the samples of images here
        and in the reference.
        """
        count = len(images)
        draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_RESAMPLES) / count
        windows = window_statistics(np.concatenate([images.mean(axis=0)[None], draws @ images]), objects)
        means, deviations = self._predicted(self._scaled(windows), np.ones(len(self._points), bool))
        sampling = np.hypot(
            self._spread * np.sqrt(1 / count + 1 / reference_images), self._clean * means[1:].std(axis=0)
        )
        values = np.clip(self._clean * (1 + means[0]), 0, 1)
        halves = np.hypot(self._widening * deviations[0] * self._clean, _QUANTILE * sampling)
        low, high = np.maximum(values - halves, 0), np.minimum(values + halves, 1)
        is_trusted = (deviations[0] <= _MOST_DEVIATION) & (self._clean >= _LEAST)
        columns = (part.tolist() for part in (values, low, high, is_trusted))
        return {name: Estimate(*row) for name, row in zip(MEASURES, zip(*columns, strict=True), strict=True)}

    def _scaled(self, statistics: np.ndarray) -> np.ndarray:
        return (statistics - self._first) / self._scale

    def _predicted(self, points: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the relative changes of the measures [P, 3] at points [P, 8], and their deviation [P]."""
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
