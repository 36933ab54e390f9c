"""Merging of detections in overlapping tiles of an image, in NumPy.

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
from typing import NamedTuple

import numpy as np

_SAME = 0.5  # IoU above which two boxes are one object
_BORDER = 0.02  # share of a tile's side: a box that ends this close to an inner border is cut
_RANK_OF_CUT = 0.5  # factor of the score of cut boxes


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
    size: tuple[int, int],
) -> list[np.ndarray]:
    """Return for each object the numbers of its boxes, one or several parts; highest score first.

    boxes [N, 4] yxyx pixels of an image of `size` (height, width), each inside its tile; scores [N]; classes [N];
    found_in [N], the numbers of their tiles; tiles [T, 4] yxyx. A box in none of the results duplicates an object of
    another tile.
    """
    boxes, tiles = np.asarray(boxes, np.float64).reshape(-1, 4), np.asarray(tiles, np.float64)
    shown = tiles[found_in]
    cut = _are_cut(boxes, shown, size)
    neighbors = [
        np.flatnonzero((_areas(_shared(tile, tiles)) > 0) & (np.arange(len(tiles)) != number)).tolist()
        for number, tile in enumerate(tiles)
    ]
    numbers_of: dict[tuple[int, int], list[int]] = defaultdict(list)  # key: tile and class
    object_of: dict[int, _Object] = {}
    for number in np.argsort(-(scores * np.where(cut, _RANK_OF_CUT, 1.0)), kind="stable").tolist():
        tile, of_class = int(found_in[number]), int(classes[number])
        candidates = np.array(
            [candidate for other in neighbors[tile] for candidate in numbers_of.get((other, of_class), ())], int
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


def _are_cut(boxes: np.ndarray, tiles: np.ndarray, size: tuple[int, int]) -> np.ndarray:
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
