"""The training images as the network is shown them, complete or in tiles, and the choice between the two."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dataset.input.tiling import Tiling, seen_in_tiles, tile_counts, tiles_per_epoch
from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.tile_checks import SMALL, suggested_tile, typical_tile_count
from efficientdet.quickstart import choices
from efficientdet.quickstart.split_records import image_count, labeled_images

_MAGNIFICATION = 2  # most input pixels per image pixel: small objects in tiles are worth it


class ShownImages(NamedTuple):
    """Training images with the sizes and boxes of what the network is shown.

    largest: longer side in pixels of the largest input that is worth it. per_epoch: number of images or tiles.
    """

    images: LabeledImages
    largest: int
    per_epoch: int


def shown_images(images: LabeledImages, settings: Mapping[str, Any]) -> ShownImages:
    """Return the images, or their tiles if the settings have a `tile_size`."""
    tiling = Tiling.of_hyperparameters(settings)
    if tiling is None:
        return ShownImages(images, choices.typical_side(images.sizes), len(images))
    return ShownImages(
        seen_in_tiles(images, tiling), _MAGNIFICATION * max(tiling.size), int(tiles_per_epoch(images, tiling).sum())
    )


def evaluated_count(pattern: str, settings: Mapping[str, Any]) -> int:
    """Return the number of images of records, or of all of their tiles."""
    tiling = Tiling.of_hyperparameters(settings)
    return image_count(pattern) if tiling is None else int(tile_counts(labeled_images(pattern).sizes, tiling).sum())


def tile_settings(images: LabeledImages, published: int, budget: choices.Budget, *, image_ms: float) -> dict[str, Any]:
    """Return the `tile_size` if objects are too small in the complete images at every input that fits into the time.

    Prints the gain and the cost. image_ms: milliseconds of detection in an input of 256 pixels.
    """
    side, _ = choices.image_side(choices.typical_side(images.sizes), published, budget)
    share, tile = budget.object_share, suggested_tile(images)
    if share is None or tile is None or share * side >= SMALL:
        return {}
    settings, pixels = {"tile_size": tile}, share * choices.typical_side(images.sizes)
    tiles = typical_tile_count(images, settings)
    print(
        f"tiles of {tile}x{tile} pixels of the images: the median object of the smallest class has {pixels:.0f}, "
        f"in an input of {side} that shows a complete image {share * side:.0f}; an image has {tiles} tiles, detection "
        f"takes about {tiles * image_ms:.0f} ms with an input of 256; --hparams=tile_size=0 trains without tiles"
    )
    return settings
