"""Crops: a window of the original image, resampled and optionally mirrored, applied to pixels, boxes and masks.

h, w are the size of the original image in pixels, H, W that of the network input.
"""

import math
from typing import NamedTuple

import cv2
import numpy as np
import tensorflow as tf

from dataset.records.schema import decode_image
from object_detection.structures import Tensor
from program_support.errors import InputError

# A clipped box must keep at least this many pixels in each direction: a thinner sliver shows nothing of the object but
# would still make anchors positive.
MINIMUM_BOX_SIDE = 1.0

cv2.setNumThreads(1)  # tf.data already uses a thread per core


class Crop(NamedTuple):
    """A window of whole pixels of the original image and the size it is resampled to; each [2] int32 (y, x)."""

    offset: Tensor
    window: Tensor
    size: Tensor
    flip: Tensor  # [] bool, mirrored left to right


def decode_window(encoded: Tensor, crop: Crop) -> Tensor:
    """Decode the window of an image, without the rest of a JPEG: [*crop.window, 3] uint8."""
    place = tf.concat([crop.offset, crop.window], axis=0)
    (top, left), (bottom, right) = tf.unstack(crop.offset), tf.unstack(crop.offset + crop.window)
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_and_crop_jpeg(encoded, place, channels=3),
        lambda: decode_image(encoded)[top:bottom, left:right],
    )


def crop_image(encoded: Tensor, crop: Crop, *, size: tuple[int, int]) -> Tensor:
    """Resample the window of an encoded image, mirror it and pad it: [H, W, 3] uint8.

    Half-pixel bilinear resampling without antialiasing, as the default of `letterbox`, but by OpenCV, which takes half
    the time and differs by at most one gray level.
    """
    image = tf.numpy_function(
        _resampled, [decode_window(encoded, crop), crop.size, crop.flip, size], tf.uint8, stateful=False
    )
    return tf.ensure_shape(image, [*size, 3])


def _resampled(window: np.ndarray, window_size: np.ndarray, flip: np.ndarray, size: np.ndarray) -> np.ndarray:
    height, width = window_size.tolist()
    image = np.zeros((*size, 3), np.uint8)
    inside = image[:height, :width]
    cv2.resize(window, (width, height), dst=inside, interpolation=cv2.INTER_LINEAR)
    if flip:
        cv2.flip(inside, 1, dst=inside)
    return image


def are_cut(boxes: Tensor, cropped: Tensor, crop: Crop, *, source_size: Tensor, least_visible: float) -> Tensor:
    """Return whether a crop shows less than a share of the area of each box, [N] bool.

    boxes [N, 4] yxyx as fractions of the original image; cropped [N, 4], the result of `crop_boxes` for them.
    """
    ratio = tf.cast(crop.size, tf.float32) / tf.cast(crop.window, tf.float32)
    sides = (boxes[:, 2:] - boxes[:, :2]) * tf.cast(source_size, tf.float32) * ratio
    shown = tf.reduce_prod(cropped[:, 2:] - cropped[:, :2], axis=-1)
    return shown < least_visible * tf.reduce_prod(sides, axis=-1)


def crop_boxes(boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
    """Apply a crop to boxes.

    [N, 4] float32 yxyx as fractions of the original image -> [N, 4] float32 yxyx input pixels, clipped to the valid
    area, and [N] bool, whether to keep the box: MINIMUM_BOX_SIDE pixels are left in each direction, or all of a box
    that is thinner than that.
    """
    ratio = tf.cast(crop.size, tf.float32) / tf.cast(crop.window, tf.float32)
    corners = tf.reshape(boxes, [-1, 2, 2]) * tf.cast(source_size, tf.float32)  # [N, (min, max), (y, x)]
    corners = (corners - tf.cast(crop.offset, tf.float32)) * ratio
    limits = tf.cast(crop.size, tf.float32)
    clipped = tf.clip_by_value(corners, 0.0, limits)
    whole_sides, sides = corners[:, 1] - corners[:, 0], clipped[:, 1] - clipped[:, 0]
    is_visible = tf.reduce_all((sides > 0.0) & (sides >= tf.minimum(MINIMUM_BOX_SIDE, 0.999 * whole_sides)), axis=-1)
    low, high = clipped[:, 0], clipped[:, 1]
    mirrored_low = tf.stack([low[:, 0], limits[1] - high[:, 1]], axis=-1)
    mirrored_high = tf.stack([high[:, 0], limits[1] - low[:, 1]], axis=-1)
    plain = tf.concat([low, high], axis=-1)
    return tf.where(crop.flip, tf.concat([mirrored_low, mirrored_high], axis=-1), plain), is_visible


def crop_masks(
    pngs: Tensor, boxes: Tensor, crop: Crop, *, source_size: Tensor, side: int, file_name: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply a crop to masks, cropped to the boxes.

    Returns [n, side, side] uint8, 0 or 1, and [n] bool, whether the object is visible.

    `pngs` [n] have the size of the image and are nonzero inside the object; `boxes` [n, 4] float32 are the output of
    `crop_boxes`, in input pixels after crop and flip. A cell is 1 if the original pixel at its center belongs to the
    object, so coordinates are rounded only once. An object is visible if any original pixel that its box touches
    belongs to it, also between cell centers.

    Raises:
        InputError: with `file_name`, for a PNG that is not a mask of this image.
    """
    masks, shows = tf.numpy_function(
        _masks_in_boxes, [pngs, boxes, *crop, source_size, side, file_name], (tf.uint8, tf.bool), stateful=False
    )
    return tf.ensure_shape(masks, [None, side, side]), tf.ensure_shape(shows, [None])


def _masks_in_boxes(
    pngs: np.ndarray,
    boxes: np.ndarray,
    offset: np.ndarray,
    window: np.ndarray,
    size: np.ndarray,
    flip: np.ndarray,
    source_size: np.ndarray,
    side: int,
    file_name: bytes,
) -> tuple[np.ndarray, np.ndarray]:
    masks, shows = np.zeros((len(pngs), side, side), np.uint8), np.zeros(len(pngs), bool)
    # Fractions of the box: the centers of cells, and its edges
    shares = np.concatenate([(np.arange(side) + 0.5) / side, [0.0, 1.0]])
    crop = Crop(offset, window, size, flip)
    for number, (png, box) in enumerate(zip(pngs, boxes.astype(np.float64), strict=True)):
        y, x = box[:2, None] + shares * (box[2:] - box[:2])[:, None]  # [side + 2] input pixels each
        mask = decoded_mask(png, source_size, file_name)
        masks[number] = mask_at(mask, y[:side], x[:side], crop)
        touched = tuple(
            slice(max(int(edges.min()), offset[axis]), min(math.ceil(edges.max()), offset[axis] + window[axis]))
            for axis, edges in enumerate(_in_original(y[side:], x[side:], crop))
        )
        shows[number] = mask[touched].any()
    return masks, shows


def mask_at(mask: np.ndarray, y: np.ndarray, x: np.ndarray, crop: Crop) -> np.ndarray:
    """Return whether the original pixels at rows `y` [m] and columns `x` [n] of a crop, in input pixels, are set.

    `mask` [h, w] is nonzero inside the object; the values of `crop` are arrays. Returns [m, n] bool.
    """
    rows, columns = (
        np.clip(places.astype(np.int64), 0, mask.shape[axis] - 1)
        for axis, places in enumerate(_in_original(y, x, crop))
    )
    return mask[rows].take(columns, axis=1) != 0


def _in_original(y: np.ndarray, x: np.ndarray, crop: Crop) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and columns of a crop in pixels of the original image."""
    x = np.asarray(crop.size[1]) - x if crop.flip else x
    offset, ratio = np.asarray(crop.offset), np.asarray(crop.window) / np.asarray(crop.size)
    return offset[0] + y * ratio[0], offset[1] + x * ratio[1]


def decoded_mask(png: bytes, size: np.ndarray, file_name: bytes) -> np.ndarray:
    """Decode a mask: [h, w], nonzero inside the object."""
    mask = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_GRAYSCALE | cv2.IMREAD_ANYDEPTH) if png else None
    if mask is None or mask.shape != (*size,):
        stored = "no PNG" if mask is None else f"a PNG of {mask.shape[0]} x {mask.shape[1]} pixels"
        raise InputError(
            f"{file_name.decode('utf-8', 'replace')}: image/object/mask holds {stored}; expected a mask of the "
            f"image, {size[0]} x {size[1]}; convert again with --include_masks"
        )
    return mask
