"""Tiled detection in large images, in which small objects keep their resolution.

A tile shows some objects only in part: their boxes end at one of its inner borders and are called cut. Two boxes of one
class from different tiles are the same object if their IoU exceeds 0.5 after each is clipped to the other's tile, if
the other is cut. Half of a car therefore matches the complete car in another tile, and two halves match in the strip
that both tiles show.

Boxes are processed by decreasing score, cut boxes with half of their score: a complete car is preferred to half of it
with a higher score, unless its own score is very low. A box that matches an earlier one is dropped, except that
matching cut boxes are merged into their bounding box if they are from different tiles and score at least half as much.
Boxes of one tile are not compared, because NMS was already applied to them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dataset.input.tiling import Tiling
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import moved, united

if TYPE_CHECKING:
    from dataset.files.image_windows import ImageWindows

_SAME = 0.5  # IoU above which two boxes are one object
_BORDER = 0.02  # share of a tile's side: a box that ends this close to an inner border is cut
_RANK_OF_CUT = 0.5  # factor of the score of cut boxes
# Returns the detections of each image [h, w, 3] uint8, highest score first
Detect = Callable[[list[np.ndarray]], list[DetectionRows]]
OnProgress = Callable[[int, int], None]  # takes the number of finished tiles and of all tiles of an image
_OVERVIEW_SIDE = 4096  # pixels


class LargeImage:
    """An opened image; slicing it like an array [h, w, 3] uint8 reads that window."""

    def __init__(self, windows: "ImageWindows"):
        self._windows = windows
        self.shape = (*windows.size, 3)
        self.note = windows.note

    def __getitem__(self, place: tuple[slice, slice]) -> np.ndarray:
        rows, columns = (part.indices(side) for part, side in zip(place, self.shape, strict=False))
        return self._windows.read(rows[0], columns[0], rows[1], columns[1])

    def overview(self) -> tuple[np.ndarray, float]:
        """Return the complete image with a longer side of at most 4,096 pixels, and its scale."""
        scale = min(1.0, _OVERVIEW_SIDE / max(self.shape))
        height, width = (max(1, round(scale * side)) for side in self.shape[:2])
        return self._windows.reduced((height, width)), scale

    def close(self) -> None:
        """Free the file."""
        self._windows.close()


class TiledDetector:
    """Detection in large images with `batch_size` tiles at a time; see `merged_over_tiles`."""

    def __init__(
        self, detect: Detect, tiling: Tiling, *, batch_size: int, on_progress: OnProgress = lambda done, total: None
    ):
        self.untiled, self.tiling, self._batch_size, self._on_progress = detect, tiling, batch_size, on_progress

    def __call__(self, images: list[np.ndarray]) -> list[DetectionRows]:
        """Detect in images [h, w, 3] uint8, one after another."""
        return [self._rows(image) for image in images]

    def _rows(self, image: Any) -> DetectionRows:
        """Return the rows of an image, an array or a `LargeImage`; one of a single tile is processed without tiling."""
        tiles, by_tile = self.tiling.tiles(image.shape[:2]), list[DetectionRows]()
        if len(tiles) == 1 and not self.tiling.keeps_scale:
            return self.untiled([image])[0]
        has_overview = self.tiling.whole and isinstance(image, LargeImage)  # in place of all of its pixels
        windows = len(tiles) - has_overview
        for first in range(0, windows, self._batch_size):
            batch = tiles[first : min(first + self._batch_size, windows)]
            by_tile += self.untiled([self.tiling.pixels(image, tile) for tile in batch])
            self._on_progress(len(by_tile), len(tiles))
        if has_overview:
            overview, scale = image.overview()
            [rows] = self.untiled([overview])
            by_tile.append(rows._replace(boxes=rows.boxes / scale))
        return rows_of_tiles(by_tile, tiles, size=image.shape[:2])


def rows_of_tiles(by_tile: Sequence[DetectionRows], tiles: np.ndarray, *, size: tuple[int, ...]) -> DetectionRows:
    """Return the rows of an image of `size` (height, width) from those in its tiles [T, 4] yxyx, in pixels of each."""
    by_tile = [_in_image(rows, tile) for rows, tile in zip(by_tile, tiles, strict=True)]
    boxes, scores, category_ids = (
        np.concatenate(values) for values in zip(*(rows[1:4] for rows in by_tile), strict=True)
    )
    found_in = np.repeat(np.arange(len(by_tile)), [len(rows.scores) for rows in by_tile])
    objects = merged_over_tiles(boxes, scores, category_ids, found_in, tiles=tiles, size=size)
    best = np.array([parts[scores[parts].argmax()] for parts in objects], int)
    around = [[*boxes[parts, :2].min(axis=0), *boxes[parts, 2:].max(axis=0)] for parts in objects]
    masks = None
    if by_tile[0].masks is not None:
        in_tile, corners = np.concatenate([rows.masks for rows in by_tile]), tiles[found_in, :2]
        masks = [united([moved(in_tile[part], corners[part], size=size) for part in parts]) for parts in objects]
    return DetectionRows.of_image(
        np.array(around, np.float32).reshape(-1, 4), scores[best], category_ids[best], masks=masks
    )


def _in_image(rows: DetectionRows, tile: np.ndarray) -> DetectionRows:
    """Shift boxes of a tile to the image, clip them to the tile, drop empty ones; masks stay relative to the tile."""
    start, end = np.tile(tile[:2], 2), np.tile(tile[2:], 2)
    boxes = np.clip(rows.boxes + start.astype(np.float32), start, end)
    rows = rows._replace(boxes=boxes.astype(np.float32))
    return rows.chosen((boxes[:, 2:] > boxes[:, :2]).all(axis=1))


class _Object(NamedTuple):
    numbers: list[int]  # numbers of its boxes
    tiles: set[int]  # the tiles of its boxes


def merged_over_tiles(
    boxes: np.ndarray,
    scores: np.ndarray,
    classes: np.ndarray,
    found_in: np.ndarray,
    *,
    tiles: np.ndarray,
    size: tuple[int, ...],
) -> list[np.ndarray]:
    """Return for each object the numbers of its boxes, one or several parts; highest score first.

    boxes [N, 4] yxyx pixels of an image of `size` (height, width), each inside its tile; scores [N]; classes [N];
    found_in [N], the numbers of their tiles; tiles [T, 4] yxyx. A box in none of the results duplicates an object of
    another tile.
    """
    boxes, tiles = np.asarray(boxes, np.float64).reshape(-1, 4), np.asarray(tiles, np.float64)
    shown = tiles[found_in]
    cut = _are_cut(boxes, shown, size)
    others = _other_tiles(boxes, found_in, tiles)
    numbers_of: dict[tuple[int, int], list[int]] = defaultdict(list)  # key: tile and class
    object_of: dict[int, _Object] = {}
    for number in np.argsort(-(scores * np.where(cut, _RANK_OF_CUT, 1.0)), kind="stable").tolist():
        tile, of_class = int(found_in[number]), int(classes[number])
        candidates = np.array(
            [candidate for other in others[number] for candidate in numbers_of.get((other, of_class), ())], int
        )
        same = _same_objects(number, candidates, boxes=boxes, cut=cut, shown=shown)
        if len(same) and not (cut[number] and cut[same].all() and scores[number] >= _RANK_OF_CUT * scores[same].max()):
            continue
        merged = _Object([number], {tile})
        for part in (object_of[other] for other in same.tolist()):
            if not merged.tiles & part.tiles:
                merged.numbers.extend(part.numbers)
                merged.tiles.update(part.tiles)
            elif tile in part.tiles:  # this tile already has a better box of the object
                break
        else:
            object_of |= dict.fromkeys(merged.numbers, merged)
            numbers_of[tile, of_class].append(number)
    objects = [np.array(group.numbers) for number, group in object_of.items() if number == group.numbers[0]]
    return sorted(objects, key=lambda parts: (-scores[parts].max(), parts.min()))


def _other_tiles(boxes: np.ndarray, found_in: np.ndarray, tiles: np.ndarray) -> list[list[int]]:
    """Return the numbers of the other tiles that each box reaches into: only their boxes can be the same object."""
    others: list[list[int]] = [[] for _ in boxes]
    by_tile = np.argsort(found_in, kind="stable")
    ends = np.searchsorted(found_in[by_tile], np.arange(len(tiles)), side="right")
    for tile, mine in enumerate(np.split(by_tile, ends[:-1])):
        near = np.flatnonzero(_areas(_shared(tiles[tile], tiles)) > 0)
        near = near[near != tile]
        for row, column in zip(*np.nonzero(_areas(_shared(boxes[mine, None], tiles[near])) > 0), strict=True):
            others[mine[row]].append(int(near[column]))
    return others


def _are_cut(boxes: np.ndarray, tiles: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """Return whether each box [N, 4] ends at an inner border of its tile [N, 4], [N] bool."""
    near = _BORDER * np.tile(tiles[:, 2:] - tiles[:, :2], 2)
    inner = tiles != np.array([0, 0, *size], np.float64)
    return (inner & (np.abs(boxes - tiles) <= near)).any(axis=1)


def _same_objects(
    number: int, candidates: np.ndarray, *, boxes: np.ndarray, cut: np.ndarray, shown: np.ndarray
) -> np.ndarray:
    """Return the candidates (numbers of boxes) that are the same object as a box; shown [N, 4]: the tile of each."""
    if not len(candidates):
        return candidates
    box, others = boxes[number], boxes[candidates]
    seen = np.where(cut[candidates, None], _shared(box, shown[candidates]), box)  # the part within the candidate's tile
    others_seen = _shared(others, shown[number]) if cut[number] else others
    shared = _areas(_shared(seen, others_seen))
    return candidates[shared > _SAME * (_areas(seen) + _areas(others_seen) - shared)]


def _shared(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return intersections of boxes that broadcast, [..., 4]; with max < min if there is none."""
    return np.concatenate(
        [np.maximum(boxes[..., :2], others[..., :2]), np.minimum(boxes[..., 2:], others[..., 2:])], axis=-1
    )


def _areas(boxes: np.ndarray) -> np.ndarray:
    """Return the areas [...] of boxes [..., 4]; 0 for an empty box or one with max < min."""
    return np.maximum(boxes[..., 2:] - boxes[..., :2], 0).prod(axis=-1)
