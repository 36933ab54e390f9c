"""Tiled detection in large images, in which small objects keep their resolution."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from efficientdet.inference.detect import Detect
from efficientdet.inference.tile_merging import merged_over_tiles
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import moved, united
from program_support.errors import InputError

MIN_TILE = 32  # pixels per side
OnProgress = Callable[[int, int], None]  # takes the number of finished tiles and of all tiles of an image


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Tiling of images into tiles of `size` (height, width), pixels of the image.

    `overlap` is the minimum overlap of neighboring tiles as a fraction of a tile; `whole`: the complete image is an
    additional tile, for objects larger than a tile.
    """

    size: tuple[int, int]
    overlap: float = 0.2
    whole: bool = True

    @classmethod
    def parse(cls, text: str, *, overlap: float, whole: bool) -> "Tiling":
        """Parse a side such as 512, or WIDTHxHEIGHT.

        Raises:
            InputError: for anything else.
        """
        sides = text.lower().split("x")
        if len(sides) > 2 or not all(
            side.isascii() and side.isdecimal() and len(side) < 10 and int(side) >= MIN_TILE for side in sides
        ):
            raise InputError(
                f"--tile={text}: expected a side such as 512, or WIDTHxHEIGHT, of {MIN_TILE} pixels or more"
            )
        return cls(size=(int(sides[-1]), int(sides[0])), overlap=overlap, whole=whole)

    def tiles(self, image_size: tuple[int, int]) -> np.ndarray:
        """Return the tiles [T, 4] int yxyx of an image of a size (height, width), from top to bottom.

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
        return np.array(tiles)

    def _starts(self, side: int, length: int) -> list[int]:
        step = max(int(side * (1 - self.overlap)), 1)
        last = max(length - side, 0)
        return [*range(0, last, step), last]


class TiledDetector:
    """Detection in large images with `batch_size` tiles at a time; see `merged_over_tiles`."""

    def __init__(
        self, detect: Detect, tiling: Tiling, *, batch_size: int, on_progress: OnProgress = lambda done, total: None
    ):
        self._detect, self._tiling, self._batch_size, self._on_progress = detect, tiling, batch_size, on_progress

    def __call__(self, images: list[np.ndarray]) -> list[DetectionRows]:
        """Detect in images [h, w, 3] uint8, one after another."""
        return [self._rows(image) for image in images]

    def _rows(self, image: np.ndarray) -> DetectionRows:
        """Return the rows of one image; an image of a single tile is processed without tiling."""
        tiles, by_tile = self._tiling.tiles(image.shape[:2]), []
        if len(tiles) == 1:
            return self._detect([image])[0]
        for first in range(0, len(tiles), self._batch_size):
            batch = tiles[first : first + self._batch_size]
            by_tile += self._detect(
                [np.ascontiguousarray(image[top:bottom, left:right]) for top, left, bottom, right in batch]
            )
            self._on_progress(len(by_tile), len(tiles))
        return _merged(
            [_in_image(rows, tile) for rows, tile in zip(by_tile, tiles, strict=True)], tiles, image.shape[:2]
        )


def _in_image(rows: DetectionRows, tile: np.ndarray) -> DetectionRows:
    """Shift boxes of a tile to the image, clip them to the tile, drop empty ones; masks stay relative to the tile."""
    start, end = np.tile(tile[:2], 2), np.tile(tile[2:], 2)
    boxes = np.clip(rows.boxes + start.astype(np.float32), start, end)
    rows = rows._replace(boxes=boxes.astype(np.float32))
    return rows.chosen((boxes[:, 2:] > boxes[:, :2]).all(axis=1))


def _merged(by_tile: list[DetectionRows], tiles: np.ndarray, size: tuple[int, int]) -> DetectionRows:
    boxes, scores, category_ids = (
        np.concatenate(values) for values in zip(*(rows[1:4] for rows in by_tile), strict=True)
    )
    found_in = np.repeat(np.arange(len(by_tile)), [len(rows.scores) for rows in by_tile])
    objects = merged_over_tiles(boxes, scores, category_ids, found_in, tiles=tiles, size=size)
    best = np.array([parts[scores[parts].argmax()] for parts in objects], int)
    around = [[*boxes[parts, :2].min(axis=0), *boxes[parts, 2:].max(axis=0)] for parts in objects]
    masks = None
    if by_tile[0].masks is not None:
        in_tile = np.concatenate([rows.masks for rows in by_tile])
        masks = list(_masks(objects, in_tile, tiles[found_in], size))
    return DetectionRows.of_image(
        np.array(around, np.float32).reshape(-1, 4), scores[best], category_ids[best], masks=masks
    )


def _masks(objects: list[np.ndarray], masks: np.ndarray, tiles: np.ndarray, size: tuple[int, int]) -> Iterator[dict]:
    for parts in objects:
        yield united([moved(masks[part], tiles[part, :2], size=size) for part in parts])
