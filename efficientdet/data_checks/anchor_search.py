"""Findings about padding and anchors at the network's input, with a search for settings at which objects match."""

import bisect
import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from dataset.records.labeled_records import LabeledImages
from efficientdet.data_checks.findings import Finding, as_hparams, named, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.families.hyperparameters import Hyperparameters
from program_support.errors import InputError

_MANY_UNMATCHED = 0.1  # share of objects without an anchor from which other settings are searched
_LEAST_MATCHED = 0.5  # share below which a size is not usable: a training would learn from few objects only
_OBJECTS = 1000  # sample size for trying settings
_OBJECTS_OF_A_SIZE = 300  # the same, for trying input sizes
_REDUCES = 0.55  # maximum remaining fraction of the share,
_CLEARLY = 0.25  # unless the share falls by this much: of objects as small as nuclei many remain with any setting
_JITTERS = (0.4, 0.8)  # candidates for jitter_min, the smallest training scale
_STEPS = range(-4, 5)  # half octaves of the candidate anchor scales
_CLUSTER_ROUNDS = 30
_MULTIPLE = 32  # pixels: the sides of an input are multiples of it
_OBJECTS_OF_A_CLASS = 20  # fewer objects give no reliable share
_WASTE = 0.1  # share of padding from which another shape is suggested
_SHRUNK = 0.03  # tolerated reduction of the image scale
_MAY_SHRINK = 0.02  # share of images for which it is tolerated
Size = TypeVar("Size", bound=int | str)


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
    usable = [*views]
    if not usable or not _is_usable(views[usable[-1]], fixed):
        return None
    # By bisection: all sizes larger than a usable one are usable
    return usable[bisect.bisect_left(usable[:-1], True, key=lambda size: _is_usable(views[size], fixed))]


def _is_usable(view: InputView, fixed: Collection[str]) -> bool:
    """Return whether at least half of the objects match an anchor in training, with suggested anchors and jitter."""
    if not view.has_anchors or not len(view.boxes):
        return True
    if getattr(view.hparams, "label_assignment", "iou") != "iou":  # needs no IoU, but an anchor's center in the object
        sides = view.boxes[:, 2:] - view.boxes[:, :2]
        matched = float(np.mean(np.minimum(sides / view.anchors.strides.min(axis=1), 1.0).prod(axis=1)))
    else:
        matched = 1.0 - float(np.mean(view.after(**_better_anchors(view, fixed=fixed)).unmatched_in_training))
    return matched >= _LEAST_MATCHED


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
    fixes = [] if settings else [f"no anchors or jitter of {view.hparams.name} reduce this by much"]
    if settings:
        reduced_to = f" ({_by_class(after, worst)})" if worst else ""
        fixes.append(f"{as_hparams(settings)} reduces this to {share(after.unmatched_in_training.mean())}{reduced_to}")
    if _severity(after) >= _MANY_UNMATCHED:
        larger = ["tiles of the images (tile_size)"] * (not view.hparams.tile_size)
        if hasattr(view.hparams, "anchor_scale") and "image_size" not in fixed:  # else anchors grow with the input
            larger.insert(0, "a larger image_size")
        if larger:
            fixes.append(f"{', or '.join(larger)}: the objects are larger then")
    height, width = view.size
    yield Finding(
        "anchors",
        True,
        f"{share(shares.mean())} of the objects, at training scales, have an IoU below 0.5 with every anchor "
        f"(the smallest is {np.sqrt(view.anchors.sides.prod(axis=0)).min():.0f} pixels wide, the median object "
        f"{np.median(view.sides):.0f} in an input of {width}x{height}){most_often}; " + "; ".join(fixes),
        settings=settings,
    )


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
