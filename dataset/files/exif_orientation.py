"""Images with EXIF rotation: stored pixels, and the upright image that viewers show.

All entry points follow these rules:

- Images for inference (`infer.py`, `load_detector`, `serve.py`, `export.py`, `inspector.py`, the images for 8-bit
  calibration) are rotated upright, and boxes and masks are in pixels of the upright image; see `read_image` and
  `StoredImage.upright`. `infer.py --noapply_exif_orientation` ignores the tag, for results that are compared with
  annotations of stored pixels, such as COCO's.
- Images with labels (conversion, data check) keep their stored pixels, to which the labels of COCO and Open Images
  refer, or are rotated upright if they were labeled upright; see `dataset/conversion/upright_labels.py`.
- Pixels in memory (arrays, PIL images, video frames) are not rotated.

Every orientation (EXIF 2.32, tag 0x0112) is an optional transposition, then an optional flip of rows, columns or both.
"""

from typing import NamedTuple

import numpy as np


class _Turn(NamedTuple):
    """Operations that rotate stored pixels upright, in this order."""

    transpose: bool
    flip_rows: bool
    flip_columns: bool


_TURNS = {
    1: _Turn(False, False, False),
    2: _Turn(False, False, True),
    3: _Turn(False, True, True),
    4: _Turn(False, True, False),
    5: _Turn(True, False, False),
    6: _Turn(True, False, True),
    7: _Turn(True, True, True),
    8: _Turn(True, True, False),
}


def upright_image(stored: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate stored pixels as viewers do: [h, w, ...] -> [h, w, ...] or [w, h, ...]."""
    turn = _TURNS[orientation]
    image = stored.swapaxes(0, 1) if turn.transpose else stored
    return np.ascontiguousarray(_flipped(image, turn))


def stored_image(upright: np.ndarray, orientation: int) -> np.ndarray:
    """Invert `upright_image`."""
    turn = _TURNS[orientation]
    image = _flipped(upright, turn)
    return np.ascontiguousarray(image.swapaxes(0, 1) if turn.transpose else image)


def upright_boxes(stored: np.ndarray, orientation: int, *, size: tuple[int, int]) -> np.ndarray:
    """Convert boxes [N, 4] yxyx in pixels of a stored image of `size` (height, width) to those of the upright image."""
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
