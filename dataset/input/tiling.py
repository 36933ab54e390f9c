"""Tiles of large images: where they are, and how an image smaller than a tile fills one. Does not import TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from program_support.errors import InputError

if TYPE_CHECKING:
    from dataset.records.labeled_records import LabeledImages

MIN_TILE = 32  # pixels per side
TILE_OVERLAP = 0.2  # default
PADDING = (124, 116, 104)  # ImageNet's mean color, zero after normalization as padding is


def is_tile_size(text: object) -> bool:
    """Return whether a text is a side such as 512, or WIDTHxHEIGHT, in pixels."""
    sides = str(text).lower().split("x")
    return len(sides) <= 2 and all(
        side.isascii() and side.isdecimal() and len(side) < 10 and int(side) >= MIN_TILE for side in sides
    )


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tiling of images into tiles of `size` (height, width), pixels of the image.

    `overlap` is the minimum overlap of neighboring tiles as a fraction of a tile; `whole`: the complete image is an
    additional tile, for objects larger than a tile; `keeps_scale`: an image smaller than a tile is padded to one, as in
    the training on tiles, not enlarged.
    """

    size: tuple[int, int]
    overlap: float = TILE_OVERLAP
    whole: bool = True
    keeps_scale: bool = False

    @classmethod
    def parse(cls, text: str, *, overlap: float, whole: bool) -> "Tiling":
        """Parse a side such as 512, or WIDTHxHEIGHT.

        Raises:
            InputError: for anything else.
        """
        if not is_tile_size(text):
            raise InputError(
                f"--tile={text}: expected a side such as 512, or WIDTHxHEIGHT, of {MIN_TILE} pixels or more"
            )
        sides = text.lower().split("x")
        return cls(size=(int(sides[-1]), int(sides[0])), overlap=overlap, whole=whole)

    @classmethod
    def of_hyperparameters(cls, hparams: Mapping[str, Any]) -> "Tiling | None":
        """Return the tiling that a model was trained with, None for complete images."""
        text = hparams.get("tile_size") or ""
        if not is_tile_size(text):
            return None
        overlap, whole = hparams.get("tile_overlap", TILE_OVERLAP), hparams.get("tile_whole", False)
        tiling = cls.parse(str(text), overlap=float(overlap), whole=bool(whole))
        return cls(**{**vars(tiling), "keeps_scale": True})

    def __str__(self) -> str:
        """Return the tiles for people."""
        height, width = self.size
        whole = ", and the complete image" if self.whole else ""
        return f"tiles of {width}x{height} pixels with an overlap of {self.overlap:g}{whole}"

    def tiles(self, image_size: tuple[int, int]) -> np.ndarray:
        """Return the tiles [T, 4] int64 yxyx of an image of a size (height, width), from top to bottom.

        The last tiles of a row and of a column are shifted inwards; an image not larger than a tile is one tile. With
        `whole` the complete image comes last.
        """
        rows, columns = (
            [(start, min(start + side, length)) for start in self._starts(side, length)]
            for side, length in zip(self.size, image_size, strict=True)
        )
        tiles = [(top, left, bottom, right) for top, bottom in rows for left, right in columns]
        if self.whole and len(tiles) > 1:
            tiles.append((0, 0, *image_size))
        return np.array(tiles, np.int64)

    def _starts(self, side: int, length: int) -> list[int]:
        step = max(int(side * (1 - self.overlap)), 1)
        last = max(length - side, 0)
        return [*range(0, last, step), last]

    def pixels(self, image: np.ndarray, tile: np.ndarray) -> np.ndarray:
        """Return the pixels of a tile [4] yxyx of an image [h, w, 3], padded if it `keeps_scale` and is smaller."""
        top, left, bottom, right = tile.tolist()
        pixels = np.ascontiguousarray(image[top:bottom, left:right])
        (height, width), (least_height, least_width) = pixels.shape[:2], self.size
        if not self.keeps_scale or (height >= least_height and width >= least_width):
            return pixels
        padded = np.empty((max(height, least_height), max(width, least_width), 3), np.uint8)
        padded[:] = PADDING
        padded[:height, :width] = pixels
        return padded


_EMPTY_SHARE = 0.2  # most tiles of images without objects, as a share of all


def tile_counts(sizes: np.ndarray, tiling: Tiling) -> np.ndarray:
    """Return the number of tiles of images of sizes [n, 2], [n] int64."""
    different, which = np.unique(sizes, axis=0, return_inverse=True)
    counts = [len(tiling.tiles((height, width))) for height, width in different.tolist()]
    return np.array(counts, np.int64)[which.ravel()]


def tiles_per_epoch(images: "LabeledImages", tiling: Tiling) -> np.ndarray:
    """Return the number of tiles of each image per epoch, [n] float64.

    All of its tiles, but at most one more than it has objects: few empty ones. Images without objects, such as most
    parts of a photo of the earth, are shown less than once if they would be more than a fifth of all tiles.
    """
    counts = images.counts()
    factors = np.minimum(tile_counts(images.sizes, tiling), counts + 1).astype(np.float64)
    empty = counts == 0
    if empty.any() and not empty.all():
        factors[empty] = min(1.0, _EMPTY_SHARE / (1 - _EMPTY_SHARE) * factors[~empty].sum() / empty.sum())
    return factors


def seen_in_tiles(images: "LabeledImages", tiling: Tiling) -> "LabeledImages":
    """Return the images as training sees them: as large as a tile, each object at some place in it, cut to it."""
    tile = np.array(tiling.size, np.int32)
    sides = np.minimum(images.boxes[:, 2:] - images.boxes[:, :2], tile)
    places = images.boxes[:, :2] % np.maximum(tile - sides, 1)
    boxes = np.concatenate([places, places + sides], axis=1).astype(np.float32)
    return replace(images, sizes=np.tile(tile, (len(images), 1)), boxes=boxes)


def larger_than_a_tile(images: "LabeledImages", tiling: Tiling) -> int:
    """Return the number of objects that no tile shows completely."""
    return int(((images.boxes[:, 2:] - images.boxes[:, :2]) > tiling.size).any(axis=1).sum())
