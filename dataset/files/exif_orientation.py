"""Images with EXIF rotation: the pixels that a file stores, and the upright image that viewers show.

The rule of all entry points:

- A file in which objects are to be found (`infer.py`, `load_detector`, `serve.py`, `export.py`, `inspector.py`, the images for
  8-bit ranges) is detected upright, and boxes and masks are in pixels of the upright image. `read_image` and
  `StoredImage.upright` do it. `infer.py --noapply_exif_orientation` leaves the tag alone, for results that are compared with
  annotations of stored pixels, such as COCO's.
- A file with labels (conversion, data check, and records in training and evaluation) keeps its stored pixels, because the
  labels of COCO, VOC and Open Images are in these. Labels of the upright image are refused: see
  `dataset/conversion/exif_mismatch.py`.
- Pixels in memory (arrays, PIL images, frames of a video) are taken as they are.

Every orientation (EXIF 2.32, tag 0x0112) is a transposition or none, then a flip of rows, columns, both or none.
"""

from typing import NamedTuple

import numpy as np


class _Turn(NamedTuple):
    """What makes stored pixels upright, in this order."""

    transpose: bool
    flip_rows: bool
    flip_columns: bool


_TURNS = {
    1: _Turn(False, False, False), 2: _Turn(False, False, True), 3: _Turn(False, True, True), 4: _Turn(False, True, False),
    5: _Turn(True, False, False), 6: _Turn(True, False, True), 7: _Turn(True, True, True), 8: _Turn(True, True, False),
}


def upright_image(stored: np.ndarray, orientation: int) -> np.ndarray:
    """[h, w, ...] -> [h, w, ...] or [w, h, ...]: what a viewer shows of stored pixels."""
    turn = _TURNS[orientation]
    image = stored.swapaxes(0, 1) if turn.transpose else stored
    return np.ascontiguousarray(_flipped(image, turn))


def stored_image(upright: np.ndarray, orientation: int) -> np.ndarray:
    """The inverse of `upright_image`."""
    turn = _TURNS[orientation]
    image = _flipped(upright, turn)
    return np.ascontiguousarray(image.swapaxes(0, 1) if turn.transpose else image)


def upright_boxes(stored: np.ndarray, orientation: int, *, size: tuple[int, int]) -> np.ndarray:
    """[N, 4] yxyx pixels of a stored image of `size` (height, width) -> [N, 4] yxyx pixels of the upright one."""
    turn = _TURNS[orientation]
    y_min, x_min, y_max, x_max = np.asarray(stored).reshape(-1, 4).T
    height, width = size
    if turn.transpose:
        y_min, x_min, y_max, x_max, height, width = x_min, y_min, x_max, y_max, width, height
    if turn.flip_rows:
        y_min, y_max = height - y_max, height - y_min
    if turn.flip_columns:
        x_min, x_max = width - x_max, width - x_min
    return np.stack([y_min, x_min, y_max, x_max], axis=-1)


def _flipped(image: np.ndarray, turn: _Turn) -> np.ndarray:
    image = image[::-1] if turn.flip_rows else image
    return image[:, ::-1] if turn.flip_columns else image
