"""Findings about padding and anchors at the network's input, with a search for settings at which objects match."""

import bisect
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.findings import Finding, as_hparams, named, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.data_checks.tile_checks import least_tile
from efficientdet.families.hyperparameters import Hyperparameters
from program_support.errors import InputError

_MANY_UNMATCHED = 0.1  # share of objects without an anchor from which other settings are searched
_MOST_UNMATCHED = 0.5  # share from which a size is not usable: a training would learn from the other objects only
_OBJECTS = 1000  # sample size for trying settings
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
_OBJECTS_OF_A_CLASS = 20  # fewer objects give no reliable share
_WASTE = 0.1  # share of padding from which another shape is suggested
_SHRUNK = 0.03  # tolerated reduction of the image scale
_MAY_SHRINK = 0.02  # share of images for which it is tolerated
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
        return self.unmatched <= _MOST_UNMATCHED


def anchor_match(images: LabeledImages, hparams: Hyperparameters, *, fixed: Collection[str] = ()) -> AnchorMatch:
    """Return how objects match the anchors with the settings that the data check suggests for these hyperparameters.

    `fixed` hyperparameters are kept, such as those of a checkpoint. A family without anchors matches all objects.
    """
    return _anchor_match(InputView.of(images, hparams).sample(_OBJECTS), fixed)


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
    settings = _better_anchors(view, fixed=fixed)
    return AnchorMatch(settings=settings, unmatched=float(np.mean(view.after(**settings).unmatched_in_training)))


def _severity(view: InputView) -> float:
    """Return the share of objects without an anchor in training: over all or the mean of classes, the larger."""
    if not len(view.boxes):
        return 0.0
    shares, counts = view.unmatched_in_training, np.bincount(view.classes)
    of_classes = np.bincount(view.classes, weights=shares)[counts >= 20] / counts[counts >= 20]
    return max(float(np.mean(shares)), float(np.mean(of_classes)) if len(of_classes) else 0.0)


def _better_anchors(view: InputView, *, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return `anchor_scale`, `aspect_ratios` and `jitter_min` that leave far fewer objects unmatched; or {}.

    All combinations are tried. The ratios and the weaker jitter are included only if they improve the match clearly.
    `fixed` hyperparameters keep their values.
    """
    unmatched_before = after = _severity(view)
    settings: dict[str, Any] = {}
    if unmatched_before < _MANY_UNMATCHED:
        return settings
    for others in _combinations(view, fixed):
        if after < _MANY_UNMATCHED:
            break
        scale, share = _best_scale(view, fixed, **others)
        if _is_better(share, after) or (not others and share < after):
            settings, after = scale, share
    return settings if _is_better(after, unmatched_before) else {}


def _larger_size(view: InputView, *, fixed: Collection[str] = ()) -> tuple[float, AnchorMatch] | None:
    """Return the factor by which objects must be shown larger to match anchors, and their match then; None if none.

    At most 10% remain unmatched; if that is not reached, about as few as with the largest factor. At most two input
    pixels show an image pixel.
    """
    view = view.sample(_OBJECTS_OF_A_SIZE)
    limit = min(_LARGEST_SCALE / view.scale, _LARGEST_SIDE / max(view.size))
    match_of = cache(lambda factor: _anchor_match(view.magnified(factor), fixed))
    factors = [1.0, *(factor for factor in _FACTORS if factor <= limit)]
    unmatched_before, least = match_of(factors[0]).unmatched, match_of(factors[-1]).unmatched
    if not _is_better(least, unmatched_before):
        return None
    factor = _first(factors, lambda factor: match_of(factor).unmatched <= max(_MANY_UNMATCHED, _NEARLY * least))
    return None if factor is None else (factor, match_of(factor))


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


def _rounded_up(side: int) -> int:
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
    candidates = {}
    for step, settings in settings_of.items():
        with contextlib.suppress(InputError):  # not allowed by the family
            candidates[step] = _severity(view.after(**settings))
    if not candidates:
        return others, 1.0
    step = min(candidates, key=lambda step: (candidates[step] > min(candidates.values()) * 1.1, abs(step)))
    return settings_of[step], candidates[step]


def _is_better(share: float, before: float) -> bool:
    """Return whether a share of unmatched objects is clearly smaller than before."""
    return share <= _REDUCES * before or share <= before - _CLEARLY


def better_shape(view: InputView) -> dict[str, Any]:
    """Return an `image_size` with less padding at the same image scale; empty if there is none or no need."""
    if view.padding < _WASTE:
        return {}
    height, width = (_rounded_up(int(most)) for most in view.scaled.max(axis=0))
    candidates = {(height, width), tuple(_rounded_up(int(side)) for side in np.percentile(view.scaled, 98, axis=0))}
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


def input_findings(view: InputView, *, fixed: Collection[str] = ()) -> Iterator[Finding]:
    """Yield findings about padding and anchors; for the better input shape unless it is `fixed`."""
    if not len(view.images):
        return
    shape = better_shape(view)
    if shape:
        height, width = view.size
        after = view.after(**shape)
        yield Finding(
            "padding",
            True,
            f"{share(view.padding)} of every {width}x{height} "
            f"input is padding; {as_hparams(shape)} (width x height) shows the images equally large with "
            f"{share(after.padding)} and reduces the computation of a step by "
            f"{share(1 - np.prod(after.size) / np.prod(view.size))}",
            settings=shape,
        )
        view = view if "image_size" in fixed else after
    if view.has_anchors and len(view.boxes):
        yield from _anchor_findings(view.sample(_OBJECTS), fixed)


def _anchor_findings(view: InputView, fixed: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if many objects match no anchor, also where no setting fixes it."""
    if _severity(view) < _MANY_UNMATCHED:
        return
    settings = _better_anchors(view, fixed=fixed)
    after = view.after(**settings)
    shares, worst = view.unmatched_in_training, _often_unmatched(view)
    most_often = f", most often {_by_class(view, worst)}" if worst else ""
    fixes = []
    if settings:
        reduced_to = f" ({_by_class(after, worst)})" if worst else ""
        fixes.append(f"{as_hparams(settings)} reduces this to {share(after.unmatched_in_training.mean())}{reduced_to}")
    if _severity(after) >= _MANY_UNMATCHED:
        fixes += _larger_objects(view, fixed)
    height, width = view.size
    yield Finding(
        "anchors",
        True,
        f"{share(shares.mean())} of the objects, at training scales, have an IoU below 0.5 with every anchor "
        f"(the smallest is {np.sqrt(view.anchors.sides.prod(axis=0)).min():.0f} pixels wide, the median object "
        f"{np.median(view.sides):.0f} in an input of {width}x{height}){most_often}; "
        + ("; ".join(fixes) or f"no anchors, jitter or input size of {view.hparams.name} reduces this by much"),
        settings=settings,
    )


def _larger_objects(view: InputView, fixed: Collection[str]) -> Iterator[str]:
    """Yield ways to show the objects so large that they match anchors: a larger input, and smaller or any tiles."""
    enlargement = _larger_size(view, fixed=fixed)
    if enlargement is None:
        return
    factor, match = enlargement
    height, width = (round(side / (factor * view.scale)) for side in view.size)
    enlarged = "x".join(str(_rounded_up(round(side * factor))) for side in view.size[::-1])
    settings = {"image_size": enlarged, **match.settings}
    with contextlib.suppress(InputError):  # raised by a family of one size
        unmatched = view.after(**settings).unmatched_in_training.mean()
        if _is_better(unmatched, view.unmatched_in_training.mean()):  # not if the anchors grow with the input
            cost = f"{factor**2:.3g} times the computation of a step"
            yield f"{as_hparams(settings)} would reduce it to {share(unmatched)}, with {cost}"
    if min(height, width) >= least_tile(view.images):
        anchors = f" with {as_hparams(match.settings)}" if match.settings else ""
        tiles = as_hparams({"tile_size": f"{width}x{height}"})
        yield f"tiles of the images by {tiles}{anchors} would reduce it to {share(match.unmatched)}"


def _often_unmatched(view: InputView) -> list[int]:
    """Return the classes that match anchors less often than all objects, the worst first."""
    shares, counts = view.unmatched_in_training, np.bincount(view.classes, minlength=len(view.images.class_names))
    of_class = {
        int(number): shares[view.classes == number].mean() for number in np.flatnonzero(counts >= _OBJECTS_OF_A_CLASS)
    }
    return sorted((number for number in of_class if of_class[number] >= shares.mean()), key=lambda n: -of_class[n])


def _by_class(view: InputView, numbers: Sequence[int]) -> str:
    names, shares = view.images.class_names.names, view.unmatched_in_training
    return named([f"{names[number]} {share(shares[view.classes == number].mean())}" for number in numbers])
