"""Detections of overlapping tiles of one image: which of them are the same object, in NumPy.

A tile shows some objects only in part: their boxes end at one of its inner borders and are called cut. Two boxes of one class
from different tiles are the same object if their IoU is above a half once each is restricted to what the other's tile shows,
where the other is cut. So the half of a car matches the whole car that another tile shows, and two halves match in the strip
that both tiles show.

The best are looked at first, cut boxes by half of their score: a whole car is preferred to a surer half of it, but a guess at
a car is not. What fits a box looked at before is left out, but for cut boxes that fit each other: they become one box around
them, where each is of a tile of its own and scores at least half as much. Boxes of one tile are never compared: its own
suppression has done that.
"""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

_SAME = 0.5  # IoU above which two boxes are one object
_BORDER = 0.02  # of a tile's side: a box that ends so near an inner border is cut
_RANK_OF_CUT = 0.5  # of its score


class _Object(NamedTuple):
    numbers: list[int]  # of its boxes
    tiles: set[int]  # those that they are of


def merged_over_tiles(boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, found_in: np.ndarray, *, tiles: np.ndarray,
                      size: tuple[int, int]) -> list[np.ndarray]:
    """The numbers of the boxes that each object is made of: one, or those of its parts; the best object first.

    boxes [N, 4] yxyx pixels of an image of `size` (height, width), each inside its tile; scores [N]; classes [N]; found_in [N],
    the numbers of their tiles; tiles [T, 4] yxyx. What is in none of the results is seen better by another tile.
    """
    boxes, tiles = np.asarray(boxes, np.float64).reshape(-1, 4), np.asarray(tiles, np.float64)
    shown = tiles[found_in]
    cut = _are_cut(boxes, shown, size)
    beside = [np.flatnonzero((_areas(_shared(tile, tiles)) > 0) & (np.arange(len(tiles)) != number)).tolist()
              for number, tile in enumerate(tiles)]
    kept: dict[tuple[int, int], list[int]] = defaultdict(list)  # by tile and class
    object_of: dict[int, _Object] = {}
    for number in np.argsort(-(scores * np.where(cut, _RANK_OF_CUT, 1.0)), kind="stable").tolist():
        tile, of_class = int(found_in[number]), int(classes[number])
        rivals = np.array([rival for other in beside[tile] for rival in kept.get((other, of_class), ())], int)
        same = _same_objects(number, rivals, boxes=boxes, cut=cut, shown=shown)
        if len(same) and not (cut[number] and cut[same].all() and scores[number] >= _RANK_OF_CUT * scores[same].max()):
            continue
        whole = _Object([number], {tile})
        for part in (object_of[other] for other in same.tolist()):
            if not whole.tiles & part.tiles:
                whole.numbers.extend(part.numbers)
                whole.tiles.update(part.tiles)
            elif tile in part.tiles:  # which has shown it better
                break
        else:
            object_of |= dict.fromkeys(whole.numbers, whole)
            kept[tile, of_class].append(number)
    objects = [np.array(found.numbers) for number, found in object_of.items() if number == found.numbers[0]]
    return sorted(objects, key=lambda parts: (-scores[parts].max(), parts.min()))


def _are_cut(boxes: np.ndarray, tiles: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[N] bool: whether each of the boxes [N, 4] ends at a border of its tile [N, 4] beyond which the image continues."""
    near = _BORDER * np.tile(tiles[:, 2:] - tiles[:, :2], 2)
    inner = tiles != np.float64([0, 0, *size])
    return (inner & (np.abs(boxes - tiles) <= near)).any(axis=1)


def _same_objects(number: int, rivals: np.ndarray, *, boxes: np.ndarray, cut: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Those of the rivals (numbers of boxes) that are the object that a box is; shown [N, 4] is the tile of each."""
    if not len(rivals):
        return rivals
    box, others = boxes[number], boxes[rivals]
    seen = np.where(cut[rivals, None], _shared(box, shown[rivals]), box)  # of the box, by a rival's tile
    others_seen = _shared(others, shown[number]) if cut[number] else others
    shared = _areas(_shared(seen, others_seen))
    return rivals[shared > _SAME * (_areas(seen) + _areas(others_seen) - shared)]


def _shared(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersections of boxes that broadcast against each other, [..., 4]; turned inside out where there is none."""
    return np.concatenate([np.maximum(boxes[..., :2], others[..., :2]), np.minimum(boxes[..., 2:], others[..., 2:])], axis=-1)


def _areas(boxes: np.ndarray) -> np.ndarray:
    """[..., 4] -> [...]; 0 of what is empty or turned inside out."""
    return np.maximum(boxes[..., 2:] - boxes[..., :2], 0).prod(axis=-1)
