"""Drawing of detections into an image."""

import bisect
import itertools
import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from object_detection.coco.run_length_masks import mask_bounds

# RGB, three hexadecimal digits each: every color is the farthest, in CIELAB, from all before it. None is nearly black,
# nearly white or gray, which are hard to see in a photograph.
_PALETTE = (
    "f330f022f1bd770f8e0fb05bfe0fa9f0ff91a25dea06409094181abbfaf6f098580698feeb624d6b7a8f0f7ab1f260af"
    "260f7aa28f850a9a02a3fe3cf60d9c752c6fd66eb0ee7bf0a702c02c6aa674aae8c8569178db3047fc60b7c843a56559"
    "0db6840848c0ba30ef9fb49cc2dc5c6c485d9b58f3ce4c1764fe94f65e897f9eafe5bb58f006621c8fd571cc64d4644b"
)
PALETTE_SIZE = len(_PALETTE) // 3  # further classes reuse the colors from the first on
_LINE_FRACTION = 1 / 240  # share of the image's shorter side
_RIM_FROM = 100  # pixels; the outline would hide objects in smaller images
_FONT_FRACTION = 1 / 36
_SMALLEST_FONT = 9  # pixels; digits are illegible below
_TINT = 0.45  # opacity of a class color over its masks
_LEAST_LINES = 5  # lines of text that an image must have room for to get labels

Color = tuple[int, int, int]


class _Label(NamedTuple):
    text: str
    box: tuple[float, float, float, float]  # x_min, y_min, x_max, y_max of the box it belongs to
    color: Color


def draw_detections(
    image: np.ndarray,
    boxes,
    *,
    classes,
    names: Sequence[str],
    scores=None,
    masks: Sequence[np.ndarray] | None = None,
    colors: Sequence[Color] | None = None,
    track_ids: Sequence[int] | np.ndarray | None = None,
    shorter_side: int | None = None,
) -> np.ndarray:
    """Return a copy of an image with a box, a class name and a score in percent for each detection.

    Args:
        image: uint8 [h, w, 3].
        boxes: [N, 4] yxyx in pixels of the image. They are clipped to it; empty and non-finite boxes are omitted.
        classes: [N], 0 to K-1.
        names: K class names.
        scores: [N], or None for ground truth. Detections with the highest scores are drawn last.
        masks: N masks [h, w] bool, which are tinted and outlined, or None.
        colors: N colors, or None for the colors of the classes, or of the identities if there are any.
        track_ids: N identities, which are written behind the class names, or None.
        shorter_side: Shorter side in pixels of the images for which line width and font size are chosen. At most, and
            by default, that of this image.

    Raises:
        ValueError: The image is of another type or shape, or a class has no name.
    """
    image, boxes = np.asarray(image), np.asarray(boxes, np.float64).reshape(-1, 4)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f"image is {image.dtype} {image.shape}; expected uint8 [height, width, 3], not empty")
    classes = [int(index) for index in classes]
    if not all(0 <= index < len(names) for index in classes):
        raise ValueError(f"classes reach from {min(classes)} to {max(classes)}; there are {len(names)} names")
    side = min(*image.shape[:2], shorter_side or image.shape[0])
    order = range(len(boxes)) if scores is None else np.argsort(np.asarray(scores), kind="stable")
    labels, tinted = [], image if masks is None else image.copy()
    for index in order:
        box = _clipped(boxes[index], height=image.shape[0], width=image.shape[1])
        if box:
            text = _printable(str(names[classes[index]])) + ("" if track_ids is None else f" #{track_ids[index]}")
            text = text if scores is None else f"{text} {100 * float(scores[index]):.0f}%".strip()
            color_number = classes[index] if track_ids is None else int(track_ids[index]) - 1
            color = class_color(color_number) if colors is None else colors[index]
            labels.append(_Label(text, box, color))
            if masks is not None:
                _draw_mask(tinted, masks[index], color, line=_line_width(side))
    canvas = Image.fromarray(tinted)
    _draw_boxes(canvas, labels, side=side)
    _draw_labels(canvas, labels, side=side)
    return np.asarray(canvas)


def resized(image: np.ndarray, *, longer_side: int) -> np.ndarray:
    """Resize an image, uint8 [h, w, 3], so that its longer side has `longer_side` pixels."""
    scale = longer_side / max(image.shape[:2])
    height, width = (max(1, round(scale * side)) for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def class_color(index: int) -> Color:
    """Return the fixed color of a class: RGB, 0 to 255."""
    digits = _PALETTE[3 * (index % PALETTE_SIZE) :][:3]
    return int(digits[0], 16) * 17, int(digits[1], 16) * 17, int(digits[2], 16) * 17


def _clipped(box: np.ndarray, *, height: int, width: int) -> tuple[float, float, float, float] | None:
    """Return [4] yxyx as (x_min, y_min, x_max, y_max) clipped to the image, or None if nothing is left."""
    if not np.isfinite(box).all():
        return None
    y_min, x_min, y_max, x_max = np.clip(box, 0, (height, width, height, width)).tolist()
    return (x_min, y_min, x_max, y_max) if y_max > y_min and x_max > x_min else None


def _draw_mask(image: np.ndarray, mask: np.ndarray, color: Color, *, line: int) -> None:
    """Tint and outline a mask [h, w] bool in place; the outline separates adjacent objects of a class."""
    top, left, bottom, right = mask_bounds(mask)
    if not bottom:
        return
    window = slice(top, bottom), slice(left, right)
    mask, here = mask[window], image[window]
    here[mask] = (here[mask] + _TINT * (np.array(color) - here[mask]) + 0.5).astype(np.uint8)
    width = max(1, line // 2)
    around, inner = np.pad(mask, width), mask.copy()
    for y, x in itertools.product((0, width, 2 * width), repeat=2):
        inner &= around[y : y + mask.shape[0], x : x + mask.shape[1]]
    here[mask & ~inner] = color


def _line_width(shorter_side: int) -> int:
    return max(1, round(shorter_side * _LINE_FRACTION))


def _draw_boxes(canvas: Image.Image, labels: Sequence[_Label], *, side: int) -> None:
    line = _line_width(side)
    rim = max(1, line // 3)  # a dark outline keeps the line visible on a background of its color
    draw = ImageDraw.Draw(canvas)
    for label in labels:
        x_min, y_min, x_max, y_max = label.box
        # Pillow includes the last pixel, so the box ends one pixel earlier.
        x_min, y_min, x_max, y_max = math.floor(x_min), math.floor(y_min), math.ceil(x_max) - 1, math.ceil(y_max) - 1
        if min(canvas.size) >= _RIM_FROM:
            draw.rectangle(
                (x_min - rim, y_min - rim, x_max + rim, y_max + rim), outline=(0, 0, 0), width=line + 2 * rim
            )
        draw.rectangle((x_min, y_min, x_max, y_max), outline=label.color, width=line)


def _draw_labels(canvas: Image.Image, labels: Sequence[_Label], *, side: int) -> None:
    font = ImageFont.load_default(max(_SMALLEST_FONT, round(side * _FONT_FRACTION)))
    assert isinstance(font, ImageFont.FreeTypeFont)  # the only kind of default font that has a size
    ascent, descent = font.getmetrics()
    margin = max(1, font.size // 6)
    height = ascent + descent + margin
    if _LEAST_LINES * height > canvas.height:
        return
    placed: list[tuple[float, float, float, str, Color]] = []  # left, top, width
    for label in reversed(labels):  # the highest score is placed first
        text = _shortened(label.text, font=font, width=canvas.width - 2 * margin)
        if text:
            width = font.getlength(text) + 2 * margin
            x, top, _, bottom = label.box
            x = min(x, canvas.width - width)
            # Above the box, in it, or below it: the first place that is free
            places = [min(max(y, 0), canvas.height - height) for y in (top - height, top, bottom)]
            is_free = [
                not any(x < left + wide and left < x + width and abs(y - at) < height for left, at, wide, *_ in placed)
                for y in places
            ]
            placed.append((x, places[is_free.index(True) if any(is_free) else 0], width, text, label.color))
    draw = ImageDraw.Draw(canvas)
    for x, y, width, text, color in reversed(placed):
        draw.rectangle((x, y, x + width - 1, y + height - 1), fill=color, outline=(0, 0, 0))
        draw.text((x + margin, y + margin // 2), text, font=font, fill=_contrasting(color))


def _printable(name: str) -> str:
    """Return the name on one line and without accents, which Pillow's built-in font does not have."""
    letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    return " ".join("".join(letters).split())


def _shortened(text: str, *, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return the text shortened to a width in pixels; a score at its end is removed last."""
    if len(text) <= width and font.getlength(text) <= width:  # a letter is at least one pixel wide
        return text
    name, _, score = text.rpartition(" ")
    length = bisect.bisect_right(
        range(1, min(len(name), max(1, int(width)))),
        width,
        key=lambda length: font.getlength(f"{name[:length]}. {score}"),
    )
    if length:
        return f"{name[:length]}. {score}"
    return score if font.getlength(score) <= width else ""


def _contrasting(color: Color) -> Color:
    """Return black or white, whichever is easier to read on a color, by its luminance."""
    red, green, blue = ((value / 255) ** 2.25 for value in color)
    return (0, 0, 0) if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.228 else (255, 255, 255)
