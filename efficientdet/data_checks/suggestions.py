"""Search for settings of input shape and anchors that fit a data set, with the anchors of the family."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from efficientdet.data_checks.anchor_search import OBJECTS, clustered_ratios, rounded_up, weaker_jitters
from efficientdet.data_checks.input_view import InputView
from program_support.errors import InputError

_WASTE = 0.1  # share of padding from which another shape is suggested
_SHRUNK = 0.03  # tolerated reduction of the image scale
_MAY_SHRINK = 0.02  # share of images for which it is tolerated


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Hyperparameters and their result: shares of objects whose best anchor has an IoU below 0.5."""

    settings: Mapping[str, Any]
    unmatched: float  # share at the evaluation's scale
    unmatched_in_training: float
    padding: float
    cost: float  # number of anchors, as a multiple of that of the current settings


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


def trials(view: InputView, suggested: Mapping[str, Any]) -> Iterator[Trial]:
    """Yield trials of the current settings, the suggested ones, and alternatives with a higher cost."""
    hparams, anchors = view.hparams, len(view.anchors)
    others = [{}, suggested]
    if hasattr(hparams, "anchor_scale"):
        others += [
            {"anchor_scale": float(f"{hparams.anchor_scale * factor:.3g}")} for factor in (0.5, 1 / math.sqrt(2))
        ]
    if hasattr(hparams, "aspect_ratios"):
        others.append({"aspect_ratios": clustered_ratios(view.sample(OBJECTS), len(hparams.aspect_ratios))})
    others += [{"jitter_min": jitter} for jitter in weaker_jitters(hparams)]
    if hasattr(hparams, "min_level"):
        others.append({"min_level": hparams.min_level - 1})
    height, width = hparams.input_size
    others.append({"image_size": f"{rounded_up(round(width * 1.5))}x{rounded_up(round(height * 1.5))}"})
    tried = []
    for settings in others:
        if dict(settings) in tried:
            continue
        tried.append(dict(settings))
        try:
            after = view.after(**settings)
            sample = after.sample(OBJECTS)
            yield Trial(
                settings=settings,
                unmatched=float(np.mean(sample.unmatched)),
                padding=after.padding,
                unmatched_in_training=float(np.mean(sample.unmatched_in_training)),
                cost=len(after.anchors) / anchors,
            )
        except InputError:  # not allowed by the family
            continue
