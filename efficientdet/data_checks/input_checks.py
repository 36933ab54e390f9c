"""Findings about padding, anchors and orientation at the network's input, and the settings that they suggest."""

from collections.abc import Collection, Iterator

import numpy as np

from efficientdet.data_checks.findings import WARNING, Finding, as_hparams, named, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.data_checks.orientation_checks import orientation_findings
from efficientdet.data_checks.suggestions import better_anchors, better_shape, finer_level, sampled

_OBJECTS_OF_A_CLASS = 20  # fewer objects give no reliable share


def input_findings(view: InputView, *, fixed: Collection[str] = ()) -> Iterator[Finding]:
    """Yield findings about padding, anchors and orientation; for the better input shape unless it is `fixed`."""
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
    if view.has_anchors and len(view.boxes) and (settings := better_anchors(view, fixed=fixed)):
        yield _anchor_finding(view, settings)
    yield from orientation_findings(view)


def _anchor_finding(view: InputView, settings: dict) -> Finding:
    numbers, after = sampled(view), view.after(**settings)
    before, left = view.unmatched_in_training(numbers), after.unmatched_in_training(numbers)
    classes = view.classes[numbers]
    counts = np.bincount(classes, minlength=len(view.images.class_names))
    often = np.flatnonzero(counts >= _OBJECTS_OF_A_CLASS)
    shares = {number: (before[classes == number].mean(), left[classes == number].mean()) for number in often}
    worst = sorted(
        (number for number in often if shares[number][0] >= before.mean()), key=lambda number: -shares[number][0]
    )
    smallest = float(np.sqrt(view.anchors.sides.prod(axis=0)).min())
    names = view.images.class_names.names
    without, with_them = ([f"{names[number]} {share(shares[number][place])}" for number in worst] for place in (0, 1))
    finer, option = finer_level(after), ""
    if finer:
        option = (
            f"; {as_hparams({**settings, **finer})} would reduce it to "
            f"{share(after.after(**finer).unmatched_in_training(numbers).mean())}, but slows down each step"
        )
    most_often, reduced_to = (f", most often {named(without)}", f" ({named(with_them)})") if worst else ("", "")
    return Finding(
        about="anchors",
        level=WARNING,
        settings=settings,
        line=f"{share(before.mean())} of the objects, at training scales, have an IoU below 0.5 with every anchor "
        f"(the smallest is {smallest:.0f} pixels wide){most_often}; {as_hparams(settings)} reduces this to "
        f"{share(left.mean())}{reduced_to}{option}",
    )
