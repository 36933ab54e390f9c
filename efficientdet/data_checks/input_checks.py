"""Findings about padding and anchors at the network's input, and the settings that they suggest."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from efficientdet.data_checks.anchor_search import (
    MANY_UNMATCHED,
    OBJECTS,
    better_anchors,
    finer_level,
    is_better,
    larger_size,
    rounded_up,
    scaled_size,
    unmatched_severity,
)
from efficientdet.data_checks.findings import WARNING, Finding, as_hparams, named, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.data_checks.tile_checks import least_tile
from program_support.errors import InputError

_OBJECTS_OF_A_CLASS = 20  # fewer objects give no reliable share
_WASTE = 0.1  # share of padding from which another shape is suggested
_SHRUNK = 0.03  # tolerated reduction of the image scale
_MAY_SHRINK = 0.02  # share of images for which it is tolerated


def better_shape(view: InputView) -> dict[str, Any]:
    """Return an `image_size` with less padding at the same image scale; empty if there is none or no need."""
    if view.padding < _WASTE:
        return {}
    height, width = (rounded_up(int(most)) for most in view.scaled.max(axis=0))
    candidates = {(height, width), *(tuple(rounded_up(int(side)) for side in np.percentile(view.scaled, 98, axis=0)),)}
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
            about="padding",
            level=WARNING,
            settings=shape,
            line=f"{share(view.padding)} of every {width}x{height} "
            f"input is padding; {as_hparams(shape)} (width x height) shows the images equally large with "
            f"{share(after.padding)} and reduces the computation of a step by "
            f"{share(1 - np.prod(after.size) / np.prod(view.size))}",
        )
        view = view if "image_size" in fixed else after
    if view.has_anchors and len(view.boxes):
        yield from _anchor_findings(view.sample(OBJECTS), fixed)


def _anchor_findings(view: InputView, fixed: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if many objects match no anchor, also where no setting fixes it."""
    if unmatched_severity(view) < MANY_UNMATCHED:
        return
    settings = better_anchors(view, fixed=fixed)
    after = view.after(**settings)
    shares, worst = view.unmatched_in_training, _often_unmatched(view)
    most_often = f", most often {_by_class(view, worst)}" if worst else ""
    fixes = []
    if settings:
        reduced_to = f" ({_by_class(after, worst)})" if worst else ""
        fixes.append(f"{as_hparams(settings)} reduces this to {share(after.unmatched_in_training.mean())}{reduced_to}")
    finer = finer_level(after, fixed=fixed)
    if finer:
        fixes.append(
            f"{as_hparams({**settings, **finer})} would reduce it to "
            f"{share(after.after(**finer).unmatched_in_training.mean())}, but slows down each step"
        )
    if unmatched_severity(after) >= MANY_UNMATCHED:
        fixes += _larger_objects(view, fixed)
    height, width = view.size
    yield Finding(
        about="anchors",
        level=WARNING,
        settings=settings,
        line=f"{share(shares.mean())} of the objects, at training scales, have an IoU below 0.5 with every anchor "
        f"(the smallest is {np.sqrt(view.anchors.sides.prod(axis=0)).min():.0f} pixels wide, the median object "
        f"{np.median(view.sides):.0f} in an input of {width}x{height}){most_often}; "
        + ("; ".join(fixes) or f"no anchors, jitter or input size of {view.hparams.name} reduces this by much"),
    )


def _larger_objects(view: InputView, fixed: Collection[str]) -> Iterator[str]:
    """Yield ways to show the objects so large that they match anchors: a larger input, and smaller or any tiles."""
    enlargement = larger_size(view, fixed=fixed)
    if enlargement is None:
        return
    factor, match = enlargement
    height, width = (round(side / (factor * view.scale)) for side in view.size)
    settings = {"image_size": scaled_size(view.size, factor), **match.settings}
    with contextlib.suppress(InputError):  # raised by a family of one size
        unmatched = view.after(**settings).unmatched_in_training.mean()
        if is_better(unmatched, view.unmatched_in_training.mean()):  # not if the anchors grow with the input
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
