"""Search for anchors, scale jitter and input sizes at which the objects of a data set match anchors in training."""

import bisect
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.input_view import InputView
from efficientdet.families.hyperparameters import Hyperparameters
from program_support.errors import InputError

MANY_UNMATCHED = 0.1  # share of objects without an anchor from which a warning is given and other settings are searched
MOST_UNMATCHED = 0.5  # share from which a size is not usable: a training would learn from the other objects only
OBJECTS = 1000  # sample size for trying settings
_OBJECTS_OF_A_SIZE = 300  # the same, for trying input sizes
_REDUCES = 0.55  # maximum remaining fraction of the share,
_CLEARLY = 0.25  # unless the share falls by this much: of objects as small as nuclei many remain with any setting
_JITTERS = (0.4, 0.8)  # candidates for jitter_min, the smallest training scale
_STEPS = range(-4, 5)  # half octaves of the candidate anchor scales
_CLUSTER_ROUNDS = 30
_MULTIPLE = 32  # pixels: the sides of an input are multiples of it
_FACTORS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16)  # candidate sizes as multiples of the present one
_LARGEST_SCALE = 2.0  # input pixels per image pixel: more shows no more
_LARGEST_SIDE = 2048  # pixels of an input
_NEARLY = 1.2  # multiple of the smallest share that a larger input reaches
Size = TypeVar("Size", bound=int | str)
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class AnchorMatch:
    """Share of the objects that match no anchor in training, with the suggested `settings` of anchors and jitter."""

    settings: Mapping[str, Any]
    unmatched: float

    @property
    def is_usable(self) -> bool:
        """True if at least half of the objects match an anchor."""
        return self.unmatched <= MOST_UNMATCHED


def anchor_match(images: LabeledImages, hparams: Hyperparameters, *, fixed: Collection[str] = ()) -> AnchorMatch:
    """Return how objects match the anchors with the settings that the data check suggests for these hyperparameters.

    `fixed` hyperparameters are kept, such as those of a checkpoint. A family without anchors matches all objects.
    """
    return _anchor_match(InputView.of(images, hparams).sample(OBJECTS), fixed)


def smallest_usable_size(
    images: LabeledImages, hparams: Hyperparameters, sizes: Iterable[Size], *, fixed: Collection[str] = ()
) -> Size | None:
    """Return the first of `sizes`, values of `image_size` in ascending order, that is usable; None if none is.

    Sizes that the family refuses are left out.
    """
    view, views = InputView.of(images, hparams).sample(_OBJECTS_OF_A_SIZE), {}
    for size in sizes:
        with contextlib.suppress(InputError):
            views[size] = view.after(image_size=size)
    return _first(list(views), lambda size: _anchor_match(views[size], fixed).is_usable)


def _first(ascending: Sequence[Value], is_enough: Callable[[Value], bool]) -> Value | None:
    """Return the first value that is enough, by bisection: all larger ones are; None if the last is not."""
    if not ascending or not is_enough(ascending[-1]):
        return None
    return ascending[bisect.bisect_left(ascending[:-1], True, key=is_enough)]


def _anchor_match(view: InputView, fixed: Collection[str]) -> AnchorMatch:
    if not view.has_anchors or not len(view.boxes):
        return AnchorMatch(settings={}, unmatched=0.0)
    if getattr(view.hparams, "label_assignment", "iou") != "iou":  # needs no IoU, but an anchor's center in the object
        sides = view.magnification * (view.boxes[:, 2:] - view.boxes[:, :2])
        shares = np.minimum(sides / view.anchors.strides.min(axis=1), 1.0)
        return AnchorMatch(settings={}, unmatched=1.0 - float(np.mean(shares.prod(axis=1))))
    settings = better_anchors(view, fixed=fixed)
    return AnchorMatch(settings=settings, unmatched=float(np.mean(view.after(**settings).unmatched_in_training)))


def unmatched_severity(view: InputView) -> float:
    """Return the share of objects without an anchor in training: over all or the mean of classes, the larger."""
    if not len(view.boxes):
        return 0.0
    shares, counts = view.unmatched_in_training, np.bincount(view.classes)
    of_classes = np.bincount(view.classes, weights=shares)[counts >= 20] / counts[counts >= 20]
    return max(float(np.mean(shares)), float(np.mean(of_classes)) if len(of_classes) else 0.0)


def better_anchors(view: InputView, *, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return `anchor_scale`, `aspect_ratios` and `jitter_min` that leave far fewer objects unmatched; or {}.

    All combinations are tried. The ratios and the weaker jitter are included only if they improve the match clearly.
    `fixed` hyperparameters keep their values.
    """
    unmatched_before = after = unmatched_severity(view)
    settings: dict[str, Any] = {}
    if unmatched_before < MANY_UNMATCHED:
        return settings
    for others in _combinations(view, fixed):
        if after < MANY_UNMATCHED:
            break
        scale, share = _best_scale(view, fixed, **others)
        if is_better(share, after) or (not others and share < after):
            settings, after = scale, share
    return settings if is_better(after, unmatched_before) else {}


def finer_level(view: InputView, *, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return a smaller `min_level` with its best `anchor_scale` that leaves far fewer objects unmatched; or {}."""
    unmatched_before, level = unmatched_severity(view), getattr(view.hparams, "min_level", None)
    if unmatched_before < MANY_UNMATCHED or level is None or not hasattr(view.hparams, "anchor_scale"):
        return {}
    settings, after = _best_scale(view, fixed, min_level=level - 1)
    return settings if after <= _REDUCES * unmatched_before else {}


def larger_size(view: InputView, *, fixed: Collection[str] = ()) -> tuple[float, AnchorMatch] | None:
    """Return the factor by which objects must be shown larger to match anchors, and their match then; None if none.

    At most 10% remain unmatched; if that is not reached, about as few as with the largest factor. At most two input
    pixels show an image pixel.
    """
    view = view.sample(_OBJECTS_OF_A_SIZE)
    limit = min(_LARGEST_SCALE / view.scale, _LARGEST_SIDE / max(view.size))
    match_of = cache(lambda factor: _anchor_match(view.magnified(factor), fixed))
    factors = [1.0, *(factor for factor in _FACTORS if factor <= limit)]
    unmatched_before, least = match_of(factors[0]).unmatched, match_of(factors[-1]).unmatched
    if not is_better(least, unmatched_before):
        return None
    factor = _first(factors, lambda factor: match_of(factor).unmatched <= max(MANY_UNMATCHED, _NEARLY * least))
    return None if factor is None else (factor, match_of(factor))


def scaled_size(size: tuple[int, int], factor: float) -> str:
    """Return WIDTHxHEIGHT of an input (height, width) enlarged by a factor, rounded up to multiples of 32."""
    height, width = (rounded_up(round(side * factor)) for side in size)
    return f"{width}x{height}"


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
    return tuple(float(f"{np.exp(center):.2g}") for center in np.sort(centers))


def rounded_up(side: int) -> int:
    """Return the side rounded up to a multiple of 32."""
    return -(-side // _MULTIPLE) * _MULTIPLE


def _combinations(view: InputView, fixed: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield values of `jitter_min` and `aspect_ratios` to try: first the current ones, the weakest jitter last."""
    hparams = view.hparams
    ratios: list[dict[str, Any]] = [{}]
    jitters: list[dict[str, Any]] = [{}]
    if hasattr(hparams, "aspect_ratios") and "aspect_ratios" not in fixed:
        ratios.append({"aspect_ratios": _clustered_ratios(view, len(hparams.aspect_ratios))})
    if "jitter_min" not in fixed:
        current = getattr(hparams, "jitter_min", np.inf)
        jitters += [{"jitter_min": jitter} for jitter in _JITTERS if jitter > current]
    yield from (ratio | jitter for jitter in jitters for ratio in ratios)


def _best_scale(view: InputView, fixed: Collection[str], **others: Any) -> tuple[dict[str, Any], float]:
    """Return `others` with the best `anchor_scale`, of several the nearest to the current, and the remaining share."""
    settings_of = {0: others}
    if hasattr(view.hparams, "anchor_scale") and "anchor_scale" not in fixed:
        current = view.hparams.anchor_scale
        scales = {step: float(f"{current * 2 ** (step / 2):.2g}") for step in _STEPS if step}
        settings_of |= {step: {"anchor_scale": scale} | others for step, scale in scales.items()}
    candidates = {
        step: severity
        for step, settings in settings_of.items()
        if (severity := _severity_after(view, **settings)) is not None
    }
    if not candidates:  # not allowed by the family
        return others, 1.0
    step = min(candidates, key=lambda step: (candidates[step] > min(candidates.values()) * 1.1, abs(step)))
    return settings_of[step], candidates[step]


def is_better(share: float, before: float) -> bool:
    """Return whether a share of unmatched objects is clearly smaller than before."""
    return share <= _REDUCES * before or share <= before - _CLEARLY


def _severity_after(view: InputView, **settings: Any) -> float | None:
    try:
        return unmatched_severity(view.after(**settings))
    except InputError:
        return None
