"""Tiles of images whose objects would be too small in the input, and objects that are too large for tiles."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dataset.input.tiling import Tiling, larger_than_a_tile, tile_counts
from dataset.records.labeled_records import LabeledImages
from efficientdet.data_checks.findings import Finding, as_hparams
from efficientdet.data_checks.input_view import InputView
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides

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
