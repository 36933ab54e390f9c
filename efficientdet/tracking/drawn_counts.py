"""Drawing of lines, zones and their counts into a frame."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from efficientdet.tracking.lines_and_zones import CountLine, TrackCounts

_LINE_COLOR, _TEXT_COLOR = (255, 225, 0), (0, 0, 0)  # RGB
_LINE_FRACTION, _FONT_FRACTION = 1 / 160, 1 / 28  # shares of the frame's shorter side
_SMALLEST_FONT = 10  # pixels
_ARROW = 10  # length of the arrow at a line, in widths of the line


def with_counts(pixels: np.ndarray, counts: TrackCounts) -> np.ndarray:
    """Return a frame [h, w, 3] uint8 with lines, zones and counts. An arrow at a line points to where `in` leads."""
    if not counts.all:
        return pixels
    canvas = Image.fromarray(pixels)
    draw, side = ImageDraw.Draw(canvas), min(canvas.size)
    width = max(2, round(side * _LINE_FRACTION))
    font = ImageFont.load_default(max(_SMALLEST_FONT, round(side * _FONT_FRACTION)))
    for one in counts.all:
        corners = [(float(x), float(y)) for x, y in one.points]
        if isinstance(one, CountLine):
            draw.line(corners, fill=_LINE_COLOR, width=width)
            _draw_arrow(draw, one.points, width=width)
            anchor = one.points.mean(axis=0)
        else:
            draw.polygon(corners, outline=_LINE_COLOR, width=width)
            anchor = one.points.min(axis=0)
        left, _, right, bottom = draw.textbbox((0, 0), one.short_text(), font=font)
        size = np.array([right - left + 2 * width, bottom + 2 * width])
        x, y = np.clip(anchor + width, 0, np.maximum(np.array(canvas.size) - size, 0))
        draw.rectangle((x, y, x + size[0], y + size[1]), fill=_LINE_COLOR)
        draw.text((x + width, y + width), one.short_text(), font=font, fill=_TEXT_COLOR)
    return np.asarray(canvas)


def _draw_arrow(draw: ImageDraw.ImageDraw, points: np.ndarray, *, width: int) -> None:
    along = (points[1] - points[0]) / np.hypot(*(points[1] - points[0]))
    right = np.array([-along[1], along[0]])
    foot = points[0] + 0.25 * (points[1] - points[0])
    corners = foot - along * width * 4, foot + along * width * 4, foot + right * width * _ARROW
    draw.polygon([(float(x), float(y)) for x, y in corners], fill=_LINE_COLOR)
