"""Findings about padding, anchors and tiles, with a search for settings at which objects match anchors."""

import bisect
import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from dataset.input.tiling import Tiling, larger_than_a_tile, tile_counts
from dataset.records.labeled_records import LabeledImages
from efficientdet.data_checks.findings import Finding, as_hparams, share
from efficientdet.data_checks.input_view import InputView
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from program_support.errors import InputError

_MANY_UNMATCHED = 0.1  # share of objects without an anchor from which other settings are searched
_LEAST_MATCHED = 0.5  # share below which a size is not usable: a training would learn from few objects only
_OBJECTS = 1000  # sample size for trying settings
_OBJECTS_OF_A_SIZE = 300  # the same, for trying input sizes
_REDUCES = 0.55  # maximum remaining fraction of the share,
_CLEARLY = 0.25  # unless the share falls by this much: of objects as small as nuclei many remain with any setting
_JITTERS = (0.4, 0.8)  # candidates for jitter_min, the smallest training scale
_STEPS = range(-4, 5)  # half octaves of the candidate anchor scales
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
    is_frequent = counts >= _OBJECTS_OF_A_CLASS
    of_classes = np.bincount(view.classes, weights=shares)[is_frequent] / counts[is_frequent]
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


def _common_ratios(view: InputView, count: int) -> tuple[float, ...]:
    """Return `aspect_ratios` from the quantiles of width / height in the middle of `count` equal shares."""
    sides = np.maximum(view.boxes[:, 2:] - view.boxes[:, :2], 1e-3)
    ratios = np.percentile(sides[:, 1] / sides[:, 0], 100 * (np.arange(count) + 0.5) / count)
    return tuple(float(f"{ratio:.2g}") for ratio in ratios)


def _combinations(view: InputView, fixed: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield values of `jitter_min` and `aspect_ratios` to try: first the current ones, the weakest jitter last."""
    hparams = view.hparams
    ratios: list[dict[str, Any]] = [{}]
    jitters: list[dict[str, Any]] = [{}]
    if hasattr(hparams, "aspect_ratios") and "aspect_ratios" not in fixed:
        ratios.append({"aspect_ratios": _common_ratios(view, len(hparams.aspect_ratios))})
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
    largest = np.percentile(view.scaled, (100, 98), axis=0)
    best, least = {}, view.padding - _WASTE / 2
    for height, width in np.ceil(largest // 1 / _MULTIPLE).astype(int) * _MULTIPLE:
        settings = {"image_size": f"{width}x{height}"}
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
    fixes = [] if settings else [f"no anchors or jitter of {view.hparams.name} reduce this by much"]
    if settings:
        fixes.append(f"{as_hparams(settings)} reduces this to {share(after.unmatched_in_training.mean())}")
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
        f"{share(view.unmatched_in_training.mean())} of the objects, at training scales, have an IoU below 0.5 with "
        f"every anchor (the smallest is {np.sqrt(view.anchors.sides.prod(axis=0)).min():.0f} pixels wide, the "
        f"median object {np.median(view.sides):.0f} in an input of {width}x{height}); {'; '.join(fixes)}",
        settings=settings,
    )


SMALL = 12  # pixels of an object in the input, below which tiles are suggested
_LEAST_OBJECTS = 10  # of a class; smaller classes do not count
_TILE_OF_OBJECT = 16  # side of a tile as a multiple of that of the median object
_COMMON, _TILE_OF_COMMON = 90, 1.5  # percentile of the objects' longer sides, and the smallest tile as a multiple of it
_LEAST_TILE, _MULTIPLE = 64, 32  # pixels
_LARGEST_TILE = 0.7  # share of the image's longer side: larger tiles gain little
_FEW = 0.01  # share of the objects


def object_sides(images: LabeledImages) -> np.ndarray:
    """Return the side of each object, the square root of its area, [N] float32 pixels of the image."""
    return np.sqrt((images.boxes[:, 2:] - images.boxes[:, :2]).prod(axis=1))


def of_smallest_class(images: LabeledImages, sides: np.ndarray) -> float | None:
    """Return the median side of the objects of the class in which it is smallest; None if no class has 10 objects."""
    frequent = np.flatnonzero(np.bincount(images.classes) >= _LEAST_OBJECTS)
    return min((float(np.median(sides[images.classes == number])) for number in frequent), default=None)


def suggested_tile(images: LabeledImages) -> int | None:
    """Return the side of tiles in which the objects are large enough; None if they hardly differ from the images."""
    side = of_smallest_class(images, object_sides(images))
    if side is None:
        return None
    common = float(np.percentile((images.boxes[:, 2:] - images.boxes[:, :2]).max(axis=1), _COMMON))
    smallest = max(_TILE_OF_OBJECT * side, _TILE_OF_COMMON * common, _LEAST_TILE)
    rounded = math.ceil(smallest / _MULTIPLE) * _MULTIPLE
    return rounded if rounded < _LARGEST_TILE * np.median(images.sizes.max(axis=1)) else None


def typical_tile_count(images: LabeledImages, settings: Mapping[str, Any]) -> int:
    """Return the median number of tiles of an image with these hyperparameters."""
    tiling = Tiling.of_hyperparameters(settings)
    return 1 if tiling is None else int(np.median(tile_counts(images.sizes, tiling)))


def tile_findings(images: LabeledImages, hparams: Hyperparameters) -> Iterator[Finding]:
    """Yield a finding about objects that are larger than tiles, or smaller than the network can learn without tiles."""
    if not len(images) or not len(images.boxes):
        return
    tiling = Tiling.of_hyperparameters(vars(hparams))
    if tiling is not None:
        large = larger_than_a_tile(images, tiling)
        if large > _FEW * len(images.boxes) and not tiling.whole:
            height, width = tiling.size
            yield Finding(
                "tiles",
                True,
                f"{large} of {len(images.boxes)} objects are larger than a tile of {width}x{height} pixels, so "
                "that no tile shows them completely; tile_whole=True also shows the complete images",
                settings={"tile_whole": True},
            )
        return
    side, tile = of_smallest_class(images, object_sides(images)), suggested_tile(images)
    view = InputView.of(images, hparams)
    if side is None or tile is None or side * view.scale >= SMALL:
        return
    settings = {"tile_size": tile}
    in_tiles = InputView.of(images, with_overrides(hparams, settings))
    tiles, (height, width) = typical_tile_count(images, settings), view.size
    yield Finding(
        "tiles",
        False,
        f"the median object of the smallest class has {side * view.scale:.0f} pixels in an input of "
        f"{width}x{height}, and {side * in_tiles.scale:.0f} with {as_hparams(settings)}, which trains and detects in "
        f"tiles of the images; detection in the {tiles} tiles of an image takes about {tiles} times as long",
    )
