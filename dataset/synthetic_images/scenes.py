"""The images of the synthetic data set: overlapping objects on a textured background, some across the border.

Lengths are in units of 1/128 of the longer side of the image, pixels of a network input of 128.
"""

import math

import numpy as np
from PIL import Image

from dataset.synthetic_images.shapes import FISH, KINDS, Kind, draw_shoal, draw_sprite, extent
from object_detection.coco.run_length_masks import run_lengths

_UNITS = 128
_LEAST_SIDE = 10.0  # units; smaller objects cannot be detected at an input of 128
_LEAST_SEEN = 0.6  # minimum visible fraction of each object's pixels
_LEAST_INSIDE = 0.7  # minimum fraction of an object's pixels inside the image
_ATTEMPTS = 12  # attempts to find a position
_EMPTY_SHARE, _CROWDED_SHARE, _SHOAL_SHARE = 0.04, 0.12, 0.06  # fractions of the images
_GROUND_COLORS = (  # pairs of blended background colors: sea, sand, meadow, dusk, stone, snow
    ((120, 170, 190), (170, 205, 210)),
    ((205, 185, 150), (225, 210, 180)),
    ((150, 175, 120), (190, 200, 150)),
    ((150, 140, 175), (195, 180, 200)),
    ((130, 135, 140), (175, 175, 175)),
    ((205, 215, 225), (235, 238, 240)),
)


class Scene:
    """An image being drawn, and the visible object of each pixel."""

    def __init__(self, ground: np.ndarray, unit: float):
        self.pixels = ground  # [h, w, 3] uint8
        self.unit = unit  # pixels
        self._shown = np.full(ground.shape[:2], -1, np.int32)
        self._full_counts: list[int] = []  # pixels of each object, including those hidden or outside
        self._kinds: list[tuple[Kind, bool]] = []

    def place(self, kind: Kind, sprite: np.ndarray, *, crowd: bool, random: np.random.Generator) -> bool:
        """Place a sprite [rows, columns, 4] uint8 at random; return False if all positions hide too much of others."""
        rows, columns = sprite.shape[:2]
        height, width = self.pixels.shape[:2]
        for _ in range(_ATTEMPTS):
            top = int(random.integers(-rows // 4, height - rows * 3 // 4 + 1))
            left = int(random.integers(-columns // 4, width - columns * 3 // 4 + 1))
            y, x = slice(max(top, 0), min(top + rows, height)), slice(max(left, 0), min(left + columns, width))
            part = sprite[y.start - top : y.stop - top, x.start - left : x.stop - left]
            solid, full_count = part[..., 3] >= 128, int((sprite[..., 3] >= 128).sum())
            shown = self._shown.copy()
            shown[y, x][solid] = len(self._kinds)
            counts = [*self._full_counts, full_count]
            if solid.sum() >= _LEAST_INSIDE * full_count and self._all_seen(shown, counts, touched=(y, x)):
                self._shown, self._full_counts = shown, counts
                self._kinds.append((kind, crowd))
                self._blend(part, y=y, x=x)
                return True
        return False

    def _all_seen(self, shown: np.ndarray, full_counts: list[int], *, touched: tuple[slice, slice]) -> bool:
        for number in {*np.unique(self._shown[touched]).tolist(), len(full_counts) - 1} - {-1}:
            if min(extent(shown == number)[2:]) < _LEAST_SIDE * self.unit:
                return False
            if (shown == number).sum() < _LEAST_SEEN * full_counts[number]:
                return False
        return True

    def _blend(self, part: np.ndarray, *, y: slice, x: slice) -> None:
        opacity = part[..., 3:].astype(np.float32) / 255
        drop = max(round(1.5 * self.unit), 1)
        shadow = np.zeros_like(opacity)
        shadow[drop:, drop:] = opacity[:-drop, :-drop]
        ground = self.pixels[y, x] * (1 - 0.35 * shadow)
        self.pixels[y, x] = (ground * (1 - opacity) + part[..., :3] * opacity + 0.5).astype(np.uint8)

    def annotations(self) -> list[dict]:
        """Return the objects in COCO format without ids, with run lengths of the visible pixels."""
        annotations = []
        for number, (kind, crowd) in enumerate(self._kinds):
            seen = self._shown == number
            annotations.append(
                {
                    "category_id": kind.category_id,
                    "bbox": list(extent(seen)),
                    "area": int(seen.sum()),
                    "iscrowd": int(crowd),
                    "segmentation": run_lengths(seen),
                }
            )
        return annotations


def _noise(size: tuple[int, int], *, cells: int, random: np.random.Generator) -> np.ndarray:
    """Return smooth noise with `cells` cells across: [h, w] float32 from 0 to 1."""
    coarse = Image.fromarray(random.integers(0, 256, (cells, cells), dtype=np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC), np.float32) / 255


def draw_ground(size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return a textured background, [h, w, 3] uint8."""
    first, second = np.array(_GROUND_COLORS[random.integers(len(_GROUND_COLORS))], np.float32)
    blend = 0.65 * _noise(size, cells=int(random.integers(3, 7)), random=random)
    blend += 0.35 * _noise(size, cells=int(random.integers(10, 40)), random=random)
    if random.random() < 0.4:
        y, x = np.mgrid[: size[0], : size[1]].astype(np.float32)
        angle, period = random.uniform(0, math.pi), random.uniform(8, 24) * max(size) / _UNITS
        blend += 0.15 * np.sin((x * math.cos(angle) + y * math.sin(angle)) * (2 * math.pi / period) + 4 * blend)
    grain = random.normal(0, 5, (*size, 1)).astype(np.float32)
    color = first + (second - first) * blend[..., None] + grain
    return np.clip(color * random.uniform(0.75, 1.1), 0, 255).astype(np.uint8)


def draw_image(size: tuple[int, int], random: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    """Draw one image of (height, width): [h, w, 3] uint8 and its COCO annotations without ids."""
    scene = Scene(draw_ground(size, random), max(size) / _UNITS)
    kind_of_image = random.random()
    if kind_of_image < _EMPTY_SHARE:
        return scene.pixels, []
    crowded = kind_of_image < _EMPTY_SHARE + _CROWDED_SHARE
    if kind_of_image > 1 - _SHOAL_SHARE:
        scene.place(FISH, draw_shoal(unit=scene.unit, random=random), crowd=True, random=random)
    sides = []
    for _ in range(int(random.integers(9, 15) if crowded else random.integers(1, 7))):
        kind = KINDS[random.integers(len(KINDS))]
        low, high = kind.side
        high = min(low + (high - low) * (0.35 if crowded else 1.0), 0.9 * min(size) / scene.unit)
        low = min(low, high)  # very elongated images would have it above
        sides.append((math.exp(random.uniform(math.log(low), math.log(high))), kind))
    for side, kind in sorted(sides, key=lambda entry: -entry[0]):  # large objects are drawn first
        sprite = draw_sprite(kind, side=side * scene.unit, random=random)
        scene.place(kind, sprite, crowd=False, random=random)
    return scene.pixels, scene.annotations()
