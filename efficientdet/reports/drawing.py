"""Detections drawn into an image, for people to look at."""

import bisect
import functools
import itertools
import math
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

PALETTE_SIZE = 96  # classes beyond share the colors of the first
_LINE_FRACTION = 1 / 240  # of the shorter side of the image
_RIM_FROM = 100  # pixels; smaller images have no room for it
_FONT_FRACTION = 1 / 36
_SMALLEST_FONT = 9  # pixels; below, digits run together
_TINT = 0.45  # of the color of a class in what its masks cover
_LEAST_LINES = 5  # of text the height of an image must hold for labels not to hide it

Color = tuple[int, int, int]


class _Label(NamedTuple):
    text: str
    box: tuple[float, float, float, float]  # x_min, y_min, x_max, y_max of the box it belongs to
    color: Color


def draw_detections(image: np.ndarray, boxes, *, classes, names: Sequence[str], scores=None,
                    masks: Sequence[np.ndarray] | None = None, colors: Sequence[Color] | None = None,
                    shorter_side: int | None = None) -> np.ndarray:
    """A copy of an image with a box, a class name and a score in per cent for each detection.

    image [h, w, 3] uint8; boxes [N, 4] yxyx pixels of it; classes [N], 0 .. K-1; names, K of them; scores [N], or None
    where there are none (ground truth); masks, N of [h, w] bool, which are tinted and outlined, or None; colors, N, or None
    for those of the classes. Boxes are clipped to the image; what has nothing in it, or is not finite, is left out. The best
    are drawn last. Lines and letters are of a size for images whose `shorter_side` has so many pixels, at most that of this one
    and by default it. Raises ValueError for another kind of image or a class without a name.
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
            text = _printable(str(names[classes[index]]))
            text = text if scores is None else f"{text} {100 * float(scores[index]):.0f}%".strip()
            color = class_color(classes[index]) if colors is None else colors[index]
            labels.append(_Label(text, box, color))
            if masks is not None:
                _draw_mask(tinted, masks[index], color, line=_line_width(side))
    canvas = Image.fromarray(tinted)
    _draw_boxes(canvas, labels, side=side)
    _draw_labels(canvas, labels, side=side)
    return np.asarray(canvas)


def resized(image: np.ndarray, *, longer_side: int) -> np.ndarray:
    """An image [h, w, 3] uint8 with its longer side of so many pixels."""
    scale = longer_side / max(image.shape[:2])
    height, width = (max(1, round(scale * side)) for side in image.shape[:2])
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def class_color(index: int) -> Color:
    """The color of a class, always the same: RGB, 0 .. 255."""
    return _palette()[index % PALETTE_SIZE]


@functools.cache
def _palette() -> tuple[Color, ...]:
    """Colors that differ as much as they can: each next one is the farthest, in CIELAB, from those before.

    Neither nearly black, nearly white nor gray, which get lost in a photograph.
    """
    steps = np.arange(0, 256, 17)
    candidates = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    lab = _cielab(candidates)
    visible = (lab[:, 0] > 35) & (lab[:, 0] < 93) & (np.hypot(lab[:, 1], lab[:, 2]) > 35)
    candidates, lab = candidates[visible], lab[visible]
    chosen = [int(np.abs(candidates - (255, 51, 51)).sum(axis=-1).argmin())]
    distance = np.linalg.norm(lab - lab[chosen[0]], axis=-1)
    while len(chosen) < PALETTE_SIZE:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(lab - lab[chosen[-1]], axis=-1))
    return tuple(tuple(color) for color in candidates[chosen].tolist())


def _cielab(colors: np.ndarray) -> np.ndarray:
    """sRGB [N, 3] 0 .. 255 -> CIELAB [N, 3], white point D65 (IEC 61966-2-1, CIE 15)."""
    share = colors / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    relative = linear @ to_xyz.T / to_xyz.sum(axis=1)
    root = np.where(relative > (6 / 29) ** 3, np.cbrt(relative), relative / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = root.T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def _clipped(box: np.ndarray, *, height: int, width: int) -> tuple[float, float, float, float] | None:
    """[4] yxyx -> (x_min, y_min, x_max, y_max) inside the image; None where nothing of it is there."""
    if not np.isfinite(box).all():
        return None
    y_min, x_min, y_max, x_max = np.clip(box, 0, (height, width, height, width)).tolist()
    return (x_min, y_min, x_max, y_max) if y_max > y_min and x_max > x_min else None


def _draw_mask(image: np.ndarray, mask: np.ndarray, color: Color, *, line: int) -> None:
    """Tint what a mask [h, w] bool covers, in place, and paint its edge: neighbors of one class stay apart."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return
    window = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
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
    rim = max(1, line // 3)  # dark on both sides of the line, for images of its own color
    draw = ImageDraw.Draw(canvas)
    for label in labels:
        x_min, y_min, x_max, y_max = label.box
        # Pillow draws the last pixel, too: the box ends one before.
        x_min, y_min, x_max, y_max = math.floor(x_min), math.floor(y_min), math.ceil(x_max) - 1, math.ceil(y_max) - 1
        if min(canvas.size) >= _RIM_FROM:
            draw.rectangle((x_min - rim, y_min - rim, x_max + rim, y_max + rim), outline=(0, 0, 0),
                           width=line + 2 * rim)
        draw.rectangle((x_min, y_min, x_max, y_max), outline=label.color, width=line)


def _draw_labels(canvas: Image.Image, labels: Sequence[_Label], *, side: int) -> None:
    font = ImageFont.load_default(max(_SMALLEST_FONT, round(side * _FONT_FRACTION)))
    ascent, descent = font.getmetrics()
    margin = max(1, font.size // 6)
    height = ascent + descent + margin
    if _LEAST_LINES * height > canvas.height:
        return
    placed: list[tuple[tuple[float, float, float, float], str, Color]] = []
    for label in reversed(labels):  # the best chooses its place first
        text = _shortened(label.text, font=font, width=canvas.width - 2 * margin)
        if text:
            size = (font.getlength(text) + 2 * margin, height)
            place = _place(label.box, size=size, image_size=canvas.size, taken=[taken for taken, _, _ in placed])
            placed.append((place, text, label.color))
    draw = ImageDraw.Draw(canvas)
    for place, text, color in reversed(placed):
        draw.rectangle(place, fill=color, outline=(0, 0, 0))
        draw.text((place[0] + margin, place[1] + margin // 2), text, font=font, fill=_contrasting(color))


def _printable(name: str) -> str:
    """On one line, and letters without their accents: the font that Pillow carries has none."""
    letters = (letter for letter in unicodedata.normalize("NFKD", name) if not unicodedata.combining(letter))
    return " ".join("".join(letters).split())


def _shortened(text: str, *, font: ImageFont.FreeTypeFont, width: float) -> str:
    """As much of a text as fits; a score at its end is kept as long as possible."""
    if len(text) <= width and font.getlength(text) <= width:  # a letter is a pixel wide at least
        return text
    name, _, score = text.rpartition(" ")
    kept = bisect.bisect_right(range(1, min(len(name), max(1, int(width)))), width,
                              key=lambda kept: font.getlength(f"{name[:kept]}. {score}"))
    if kept:
        return f"{name[:kept]}. {score}"
    return score if font.getlength(score) <= width else ""


def _place(box, *, size: tuple[float, float], image_size: tuple[int, int], taken) -> tuple[float, float, float, float]:
    """Where a label stands: the first of several places at its box that is free, all inside the image."""
    x_min, y_min, x_max, y_max = box
    width, height = size
    corners = [(x_min, y_min - height), (x_min, y_min), (x_min, y_max), (x_min, y_max - height),
               (x_max - width, y_min - height), (x_max - width, y_max)]
    places = []
    for x, y in corners:
        x, y = min(max(x, 0), image_size[0] - width), min(max(y, 0), image_size[1] - height)
        places.append((x, y, x + width - 1, y + height - 1))
    return next((place for place in places if not any(_overlap(place, other) for other in taken)), places[0])


def _overlap(place, other) -> bool:
    return place[0] < other[2] and other[0] < place[2] and place[1] < other[3] and other[1] < place[3]


def _contrasting(color: Color) -> Color:
    """Black or white, whichever is easier to read on a color."""
    return (0, 0, 0) if _cielab(np.array([color]))[0, 0] > 55 else (255, 255, 255)
