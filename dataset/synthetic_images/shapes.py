"""The objects of the synthetic data set: five classes of very different size and shape, and a shoal of one class."""

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

_OVERSAMPLING = 4  # shapes are drawn larger by this factor and averaged, for smooth edges

Color = tuple[int, int, int]


class _Pen:
    """Draws on a transparent sprite in the coordinate system of one rotated object, x and y from -1 to 1."""

    def __init__(self, *, width: float, height: float, angle: float):
        cosine, sine = math.cos(angle), math.sin(angle)
        self._half = np.array([width, height]) * (_OVERSAMPLING / 2)
        self._rotation = np.array([[cosine, sine], [-sine, cosine]])
        reach = np.abs(self._rotation.T) @ self._half + _OVERSAMPLING
        columns, rows = (math.ceil(r * 2 / _OVERSAMPLING) * _OVERSAMPLING for r in reach)
        self._center = np.array([columns, rows]) / 2
        self.sprite = Image.new("RGBA", (columns, rows))
        self._draw = ImageDraw.Draw(self.sprite)

    def polygon(self, points, color: Color) -> None:
        """Fill the polygon through these points [n, 2], x and y from -1 to 1."""
        placed = (np.asarray(points, float) * self._half) @ self._rotation + self._center
        self._draw.polygon(placed.ravel().tolist(), fill=(*color, 255))

    def ellipse(self, center: tuple[float, float], radii: tuple[float, float], color: Color) -> None:
        """Fill an ellipse; center and radii are x and y from -1 to 1."""
        turns = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        self.polygon(np.stack([np.cos(turns), np.sin(turns)], axis=-1) * radii + center, color)


def _color(random: np.random.Generator, *, hue: tuple[float, float], saturation: float, value: float) -> Color:
    shifted = np.clip(random.normal([saturation, value], 0.07), 0, 1)
    red, green, blue = colorsys.hsv_to_rgb(random.uniform(*hue) % 1.0, *shifted)
    return int(red * 255), int(green * 255), int(blue * 255)


def _shaded(color: Color, factor: float) -> Color:
    red, green, blue = (min(int(channel * factor), 255) for channel in color)
    return red, green, blue


def _paint_ball(pen: _Pen, random: np.random.Generator) -> None:
    color = _color(random, hue=(0.0, 1.0), saturation=0.8, value=0.85)
    panels = int(random.integers(3, 5)) * 2
    edges = np.linspace(0, 2 * np.pi, panels * 6 + 1)
    for panel in range(panels):
        turns = edges[panel * 6 : panel * 6 + 7]
        rim = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
        pen.polygon([(0.0, 0.0), *rim.tolist()], color if panel % 2 else (245, 245, 240))
    pen.ellipse((0.0, 0.0), (0.22, 0.22), (250, 250, 250))


def _paint_fish(pen: _Pen, random: np.random.Generator) -> None:
    color = _color(random, hue=(0.0, 0.1) if random.random() < 0.6 else (0.55, 0.65), saturation=0.85, value=0.9)
    fin = _shaded(color, 0.7)
    pen.polygon([(-0.35, 0.0), (-1.0, -0.8), (-0.8, 0.0), (-1.0, 0.8)], fin)
    pen.polygon([(-0.2, -0.5), (0.1, -1.0), (0.4, -0.5)], fin)
    pen.ellipse((0.2, 0.0), (0.8, 0.7), color)
    for x in (-0.15, 0.2):
        pen.polygon([(x, -0.6), (x + 0.12, -0.62), (x + 0.12, 0.62), (x, 0.6)], (245, 240, 230))
    pen.ellipse((0.65, -0.15), (0.11, 0.18), (250, 250, 250))
    pen.ellipse((0.68, -0.15), (0.06, 0.1), (20, 20, 30))


def _paint_tree(pen: _Pen, random: np.random.Generator) -> None:
    color = _color(random, hue=(0.28, 0.42), saturation=0.7, value=0.45)
    pen.polygon([(-0.18, 0.5), (0.18, 0.5), (0.18, 1.0), (-0.18, 1.0)], (105, 70, 45))
    tiers = int(random.integers(3, 5))
    for tier in range(tiers):
        base = 0.7 - 1.1 * tier / tiers
        half = 1.0 - 0.55 * tier / tiers
        top = max(base - 1.05, -1.0)
        pen.polygon([(-half, base), (half, base), (0.0, top)], _shaded(color, 0.8 + 0.5 * tier / tiers))


def _paint_pencil(pen: _Pen, random: np.random.Generator) -> None:
    color = _color(random, hue=(0.0, 1.0), saturation=0.8, value=0.8)
    for low, high, factor in ((-1.0, -0.3, 1.2), (-0.3, 0.35, 1.0), (0.35, 1.0, 0.75)):
        pen.polygon([(-0.72, low), (0.55, low), (0.55, high), (-0.72, high)], _shaded(color, factor))
    pen.polygon([(0.55, -1.0), (0.55, 1.0), (1.0, 0.0)], (230, 195, 150))
    pen.polygon([(0.84, -0.36), (0.84, 0.36), (1.0, 0.0)], (50, 45, 50))
    pen.polygon([(-0.82, -1.0), (-0.7, -1.0), (-0.7, 1.0), (-0.82, 1.0)], (190, 190, 195))
    pen.polygon([(-1.0, -1.0), (-0.82, -1.0), (-0.82, 1.0), (-1.0, 1.0)], (235, 130, 140))


def _paint_star(pen: _Pen, random: np.random.Generator) -> None:
    color = _color(random, hue=(0.11, 0.16), saturation=0.85, value=0.95)
    turns = np.arange(10) * np.pi / 5 - np.pi / 2
    rays = np.stack([np.cos(turns), np.sin(turns)], axis=-1) * np.where(np.arange(10) % 2, 0.48, 1.0)[:, None]
    pen.polygon(rays, _shaded(color, 0.7))
    pen.polygon(rays * 0.72, color)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One class of objects: longer side in units, aspect ratio, rotation range and appearance."""

    category_id: int  # ids have gaps, as real data sets do
    name: str
    side: tuple[float, float]
    aspect: float
    tilt: float  # maximum rotation in radians, in both directions
    upright_too: bool = False  # also rotated by 90 degrees
    paint: Callable[[_Pen, np.random.Generator], None]


FISH = Kind(category_id=2, name="fish", side=(32, 68), aspect=0.55, tilt=0.3, paint=_paint_fish)
KINDS = (
    Kind(category_id=1, name="ball", side=(22, 56), aspect=1.0, tilt=math.pi, paint=_paint_ball),
    FISH,
    Kind(category_id=4, name="tree", side=(40, 96), aspect=1.8, tilt=0.06, paint=_paint_tree),
    Kind(category_id=7, name="pencil", side=(52, 92), aspect=0.25, tilt=0.12, upright_too=True, paint=_paint_pencil),
    Kind(category_id=9, name="star", side=(20, 34), aspect=1.0, tilt=math.pi, paint=_paint_star),
)


def extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the box (x, y, width, height) of the set pixels; width and height 0 if there are none."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return 0, 0, 0, 0
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def draw_sprite(kind: Kind, *, side: float, random: np.random.Generator) -> np.ndarray:
    """Draw one object whose longer side has `side` pixels: [rows, columns, 4] uint8, cropped to its opaque pixels."""
    long_side, stretch = side, kind.aspect * math.exp(random.normal(0, 0.06))
    width, height = (long_side, long_side * stretch) if stretch <= 1 else (long_side / stretch, long_side)
    angle = random.uniform(-kind.tilt, kind.tilt)
    if kind.upright_too and random.random() < 0.5:
        angle += math.pi / 2
    pen = _Pen(width=width, height=height, angle=angle)
    kind.paint(pen, random)
    sprite = pen.sprite if random.random() < 0.5 else pen.sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    small = np.asarray(sprite.reduce(_OVERSAMPLING)).copy()
    light = np.linspace(random.uniform(1.0, 1.2), random.uniform(0.7, 0.95), small.shape[0], dtype=np.float32)
    small[..., :3] = np.minimum(small[..., :3] * light[:, None, None], 255)
    left, top, columns, rows = extent(small[..., 3] >= 128)
    return small[top : top + rows, left : left + columns]


def draw_shoal(*, unit: float, random: np.random.Generator) -> np.ndarray:
    """Draw many fish, too small to annotate separately, as one sprite."""
    rows, columns = int(random.uniform(28, 44) * unit), int(random.uniform(36, 60) * unit)
    region = np.zeros((rows, columns, 4), np.uint8)
    for _ in range(int(random.integers(14, 26))):
        fish = draw_sprite(FISH, side=random.uniform(8, 11) * unit, random=random)
        top = int(random.integers(0, rows - fish.shape[0] + 1))
        left = int(random.integers(0, columns - fish.shape[1] + 1))
        part = region[top : top + fish.shape[0], left : left + fish.shape[1]]
        part[:] = np.where(fish[..., 3:] >= part[..., 3:], fish, part)
    left, top, columns, rows = extent(region[..., 3] >= 128)
    return region[top : top + rows, left : left + columns]
