"""Search for settings of input shape and anchors that fit a data set, with the anchors of the family."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from efficientdet.data_checks.input_view import InputView
from program_support.errors import InputError

_OBJECTS = 2000  # sample size for trying settings
_MULTIPLE = 32  # pixels: the sides of an input are multiples of it
_WASTE = 0.1  # share of padding from which another shape is suggested
_SHRUNK = 0.03  # tolerated reduction of the image scale
_MAY_SHRINK = 0.02  # share of images for which it is tolerated
_UNMATCHED = 0.1  # share of objects without an anchor from which another setting is suggested
_REDUCES = 0.55  # maximum remaining fraction of that share,
_CLEARLY = 0.25  # unless the share falls by this much: of objects as small as nuclei many remain with any setting
_JITTERS = (0.4, 0.8)  # candidates for jitter_min, the smallest training scale
_STEPS = range(-4, 5)  # half octaves of the candidate anchor scales
_CLUSTER_ROUNDS = 30


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Hyperparameters and their result: shares of objects whose best anchor has an IoU below 0.5."""

    settings: Mapping[str, Any]
    unmatched: float  # at evaluation scale
    unmatched_in_training: float
    padding: float
    cost: float  # number of anchors, as a multiple of that of the current settings


def better_shape(view: InputView) -> dict[str, Any]:
    """Return an `image_size` with less padding at the same image scale; empty if there is none or no need."""
    if view.padding < _WASTE:
        return {}
    height, width = (_rounded_up(int(most)) for most in view.scaled.max(axis=0))
    candidates = {(height, width), *(tuple(_rounded_up(int(side)) for side in np.percentile(view.scaled, 98, axis=0)),)}
    best, least = {}, view.padding - _WASTE / 2
    for candidate in candidates:
        settings = {"image_size": f"{candidate[1]}x{candidate[0]}"}
        try:
            after = view.after(**settings)
        except InputError:
            continue
        smaller = np.mean(np.min(after.scaled / view.scaled, axis=1) < 1 - _SHRUNK)
        if smaller <= _MAY_SHRINK and after.padding < least and np.prod(after.size) < np.prod(view.size):
            best, least = settings, after.padding
    return best


def sampled(view: InputView) -> np.ndarray:
    """Return the numbers of an evenly spaced sample of the objects."""
    return np.unique(np.linspace(0, len(view.boxes) - 1, min(_OBJECTS, len(view.boxes))).astype(int))


def better_anchors(view: InputView, *, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return `anchor_scale`, and `aspect_ratios` where these help too, that leave far fewer objects unmatched; or {}.

    `jitter_min`, unless it is `fixed`, is included if many objects remain unmatched and far fewer with less scale
    jitter.
    """
    numbers = sampled(view)
    before = _severity(view, numbers)
    anchor_scale = getattr(view.hparams, "anchor_scale", None)
    if before < _UNMATCHED or anchor_scale is None:
        return {}
    settings, after = _best_scale(view, numbers, anchor_scale)
    if hasattr(view.hparams, "aspect_ratios"):
        ratios = _clustered_ratios(view, len(view.hparams.aspect_ratios))
        with_ratios = _severity_after(view, numbers, **settings, aspect_ratios=ratios)
        if with_ratios is not None and with_ratios < _REDUCES * after and after >= _UNMATCHED:
            settings, after = settings | {"aspect_ratios": ratios}, with_ratios
    if after > _REDUCES * before and after > before - _CLEARLY:
        return {}
    if hasattr(view.hparams, "jitter_min") and "jitter_min" not in fixed:
        for jitter in _JITTERS:
            if jitter > view.hparams.jitter_min and after >= _UNMATCHED:
                weaker, left = _best_scale(view, numbers, anchor_scale, **settings | {"jitter_min": jitter})
                if left <= _REDUCES * after:
                    settings, after = weaker, left
    return settings


def finer_level(view: InputView) -> dict[str, Any]:
    """Return a smaller `min_level` with its best `anchor_scale` that leaves far fewer objects unmatched; or {}."""
    numbers, hparams = sampled(view), view.hparams
    before, level = _severity(view, numbers), getattr(hparams, "min_level", None)
    anchor_scale = getattr(hparams, "anchor_scale", None)
    if before < _UNMATCHED or level is None or anchor_scale is None:
        return {}
    settings, after = _best_scale(view, numbers, anchor_scale, min_level=level - 1)
    return settings if after <= _REDUCES * before else {}


def _best_scale(view: InputView, numbers: np.ndarray, current: float, **others: Any) -> tuple[dict[str, Any], float]:
    """Return `others` with the best `anchor_scale`, of several the nearest to `current`, and the remaining share."""
    others.pop("anchor_scale", None)
    scales = {step: float(f"{current * 2 ** (step / 2):.2g}") for step in _STEPS}
    found = {
        step: severity
        for step, scale in scales.items()
        if (severity := _severity_after(view, numbers, anchor_scale=scale, **others)) is not None
    }
    if not found:  # the other scales are not allowed by the family
        return others, 1.0
    step = min(found, key=lambda step: (found[step] > min(found.values()) * 1.1, abs(step)))
    return ({"anchor_scale": scales[step]} if step else {}) | others, found[step]


def trials(view: InputView, suggested: Mapping[str, Any]) -> Iterator[Trial]:
    """Yield trials of the current settings, the suggested ones, and alternatives with a higher cost."""
    numbers, hparams = sampled(view), view.hparams
    anchors = len(view.anchors)
    others = [{}, suggested]
    if hasattr(hparams, "anchor_scale"):
        others += [
            {"anchor_scale": float(f"{hparams.anchor_scale * factor:.3g}")} for factor in (0.5, 1 / math.sqrt(2))
        ]
    if hasattr(hparams, "aspect_ratios"):
        others.append({"aspect_ratios": _clustered_ratios(view, len(hparams.aspect_ratios))})
    if hasattr(hparams, "jitter_min"):
        others += [{"jitter_min": jitter} for jitter in _JITTERS if jitter > hparams.jitter_min]
    if hasattr(hparams, "min_level"):
        others.append({"min_level": hparams.min_level - 1})
    height, width = hparams.input_size
    others.append({"image_size": f"{_rounded_up(round(width * 1.5))}x{_rounded_up(round(height * 1.5))}"})
    tried = []
    for settings in others:
        if dict(settings) in tried:
            continue
        tried.append(dict(settings))
        try:
            after = view.after(**settings)
            yield Trial(
                settings=settings,
                unmatched=float(np.mean(after.unmatched_of(numbers))),
                padding=after.padding,
                unmatched_in_training=float(np.mean(after.unmatched_in_training(numbers))),
                cost=len(after.anchors) / anchors,
            )
        except InputError:  # not allowed by the family
            continue


def _severity_after(view: InputView, numbers: np.ndarray, **settings: Any) -> float | None:
    try:
        return _severity(view.after(**settings), numbers)
    except InputError:
        return None


def _severity(view: InputView, numbers: np.ndarray) -> float:
    """Return the share of objects without an anchor in training: over all or the mean of classes, the larger."""
    if not len(numbers):
        return 0.0
    shares, classes = view.unmatched_in_training(numbers), view.classes[numbers]
    counts = np.bincount(classes)
    of_classes = np.bincount(classes, weights=shares)[counts >= 20] / counts[counts >= 20]
    return max(float(np.mean(shares)), float(np.mean(of_classes)) if len(of_classes) else 0.0)


def _clustered_ratios(view: InputView, count: int) -> tuple[float, ...]:
    """Return `aspect_ratios` from `count` cluster centers of k-means on the logarithm of width / height."""
    sides = view.boxes[:, 2:] - view.boxes[:, :2]
    logarithms = np.log(np.maximum(sides[:, 1], 1e-3) / np.maximum(sides[:, 0], 1e-3))
    centers = np.percentile(logarithms, 100 * (np.arange(count) + 0.5) / count)
    for _ in range(_CLUSTER_ROUNDS):
        nearest = np.abs(logarithms[:, None] - centers).argmin(axis=1)
        centers = np.array(
            [
                logarithms[nearest == number].mean() if np.any(nearest == number) else centers[number]
                for number in range(count)
            ]
        )
    return tuple(float(f"{math.exp(center):.2g}") for center in np.sort(centers))


def _rounded_up(side: int) -> int:
    return -(-side // _MULTIPLE) * _MULTIPLE
