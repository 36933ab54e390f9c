"""The embedded data set: pictures that are drawn, with exact boxes, as JPEGs and COCO annotation files.

Five classes of very different size and shape lie on textured ground, cover one another and reach over the border; some
images are crowded, some hold a shoal that is annotated as one crowd region, a few are empty. A box encloses exactly the
pixels of its object that are seen. The same seed draws the same bytes.

Lengths below are in units: 1/128 of the longer side of the image, hence pixels of a network input of 128.
"""

import colorsys
import json
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from absl import flags
from PIL import Image, ImageDraw

from dataset import command_line
from dataset.conversion.shard_task import write_atomically
from object_detection.errors import InputError

_UNITS = 128
_OVERSAMPLING = 4  # shapes are drawn this much larger and averaged: smooth edges
_LEAST_SIDE = 10.0  # units; what is smaller could not be learnt at an input of 128
_LEAST_SEEN = 0.6  # of an object's own pixels; nothing is placed that would hide more of another
_LEAST_INSIDE = 0.7  # of an object's pixels inside the image
_ATTEMPTS = 12  # to find a place
_EMPTY_SHARE, _CROWDED_SHARE, _SHOAL_SHARE = 0.04, 0.12, 0.06  # of the images
_GROUND_COLOURS = (  # pairs that a ground blends between: sea, sand, meadow, dusk, stone, snow
    ((120, 170, 190), (170, 205, 210)),
    ((205, 185, 150), (225, 210, 180)),
    ((150, 175, 120), (190, 200, 150)),
    ((150, 140, 175), (195, 180, 200)),
    ((130, 135, 140), (175, 175, 175)),
    ((205, 215, 225), (235, 238, 240)),
)

Colour = tuple[int, int, int]


class _Pen:
    """Draws in the frame of one object: x and y from -1 to 1, turned by an angle, on a transparent sprite."""

    def __init__(self, *, width: float, height: float, angle: float):
        cosine, sine = math.cos(angle), math.sin(angle)
        self._half = np.array([width, height]) * (_OVERSAMPLING / 2)
        self._rotation = np.array([[cosine, sine], [-sine, cosine]])
        reach = np.abs(self._rotation.T) @ self._half + _OVERSAMPLING
        columns, rows = (math.ceil(r * 2 / _OVERSAMPLING) * _OVERSAMPLING for r in reach)
        self._centre = np.array([columns, rows]) / 2
        self.sprite = Image.new("RGBA", (columns, rows))
        self._draw = ImageDraw.Draw(self.sprite)

    def polygon(self, points, colour: Colour) -> None:
        """Fill the polygon through these (x, y)."""
        placed = (np.asarray(points, float) * self._half) @ self._rotation + self._centre
        self._draw.polygon(placed.ravel().tolist(), fill=(*colour, 255))

    def ellipse(self, centre: tuple[float, float], radii: tuple[float, float], colour: Colour) -> None:
        """Fill an ellipse."""
        turns = np.linspace(0, 2 * np.pi, 48, endpoint=False)
        self.polygon(np.stack([np.cos(turns), np.sin(turns)], axis=-1) * radii + centre, colour)


def _colour(random: np.random.Generator, *, hue: tuple[float, float], saturation: float, value: float) -> Colour:
    shifted = np.clip(random.normal([saturation, value], 0.07), 0, 1)
    red, green, blue = colorsys.hsv_to_rgb(random.uniform(*hue) % 1.0, *shifted)
    return int(red * 255), int(green * 255), int(blue * 255)


def _shaded(colour: Colour, factor: float) -> Colour:
    red, green, blue = (min(int(channel * factor), 255) for channel in colour)
    return red, green, blue


def _paint_ball(pen: _Pen, random: np.random.Generator) -> None:
    colour = _colour(random, hue=(0.0, 1.0), saturation=0.8, value=0.85)
    panels = int(random.integers(3, 5)) * 2
    edges = np.linspace(0, 2 * np.pi, panels * 6 + 1)
    for panel in range(panels):
        turns = edges[panel * 6 : panel * 6 + 7]
        rim = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
        pen.polygon([(0.0, 0.0), *rim.tolist()], colour if panel % 2 else (245, 245, 240))
    pen.ellipse((0.0, 0.0), (0.22, 0.22), (250, 250, 250))


def _paint_fish(pen: _Pen, random: np.random.Generator) -> None:
    colour = _colour(random, hue=(0.0, 0.1) if random.random() < 0.6 else (0.55, 0.65), saturation=0.85, value=0.9)
    fin = _shaded(colour, 0.7)
    pen.polygon([(-0.35, 0.0), (-1.0, -0.8), (-0.8, 0.0), (-1.0, 0.8)], fin)
    pen.polygon([(-0.2, -0.5), (0.1, -1.0), (0.4, -0.5)], fin)
    pen.ellipse((0.2, 0.0), (0.8, 0.7), colour)
    for x in (-0.15, 0.2):
        pen.polygon([(x, -0.6), (x + 0.12, -0.62), (x + 0.12, 0.62), (x, 0.6)], (245, 240, 230))
    pen.ellipse((0.65, -0.15), (0.11, 0.18), (250, 250, 250))
    pen.ellipse((0.68, -0.15), (0.06, 0.1), (20, 20, 30))


def _paint_tree(pen: _Pen, random: np.random.Generator) -> None:
    colour = _colour(random, hue=(0.28, 0.42), saturation=0.7, value=0.45)
    pen.polygon([(-0.18, 0.5), (0.18, 0.5), (0.18, 1.0), (-0.18, 1.0)], (105, 70, 45))
    tiers = int(random.integers(3, 5))
    for tier in range(tiers):
        base = 0.7 - 1.1 * tier / tiers
        half = 1.0 - 0.55 * tier / tiers
        top = max(base - 1.05, -1.0)
        pen.polygon([(-half, base), (half, base), (0.0, top)], _shaded(colour, 0.8 + 0.5 * tier / tiers))


def _paint_pencil(pen: _Pen, random: np.random.Generator) -> None:
    colour = _colour(random, hue=(0.0, 1.0), saturation=0.8, value=0.8)
    for low, high, factor in ((-1.0, -0.3, 1.2), (-0.3, 0.35, 1.0), (0.35, 1.0, 0.75)):
        pen.polygon([(-0.72, low), (0.55, low), (0.55, high), (-0.72, high)], _shaded(colour, factor))
    pen.polygon([(0.55, -1.0), (0.55, 1.0), (1.0, 0.0)], (230, 195, 150))
    pen.polygon([(0.84, -0.36), (0.84, 0.36), (1.0, 0.0)], (50, 45, 50))
    pen.polygon([(-0.82, -1.0), (-0.7, -1.0), (-0.7, 1.0), (-0.82, 1.0)], (190, 190, 195))
    pen.polygon([(-1.0, -1.0), (-0.82, -1.0), (-0.82, 1.0), (-1.0, 1.0)], (235, 130, 140))


def _paint_star(pen: _Pen, random: np.random.Generator) -> None:
    colour = _colour(random, hue=(0.11, 0.16), saturation=0.85, value=0.95)
    turns = np.arange(10) * np.pi / 5 - np.pi / 2
    rays = np.stack([np.cos(turns), np.sin(turns)], axis=-1) * np.where(np.arange(10) % 2, 0.48, 1.0)[:, None]
    pen.polygon(rays, _shaded(colour, 0.7))
    pen.polygon(rays * 0.72, colour)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One class of objects: its longer side in units, height to width, how far it is turned, what it looks like."""

    category_id: int  # with gaps, as real data sets have them
    name: str
    side: tuple[float, float]
    aspect: float
    tilt: float  # radians, to either side
    upright_too: bool = False  # also turned by a right angle
    paint: Callable[[_Pen, np.random.Generator], None]


_FISH = _Kind(category_id=2, name="fish", side=(32, 68), aspect=0.55, tilt=0.3, paint=_paint_fish)
_KINDS = (
    _Kind(category_id=1, name="ball", side=(22, 56), aspect=1.0, tilt=math.pi, paint=_paint_ball),
    _FISH,
    _Kind(category_id=4, name="tree", side=(40, 96), aspect=1.8, tilt=0.06, paint=_paint_tree),
    _Kind(category_id=7, name="pencil", side=(52, 92), aspect=0.25, tilt=0.12, upright_too=True, paint=_paint_pencil),
    _Kind(category_id=9, name="star", side=(20, 34), aspect=1.0, tilt=math.pi, paint=_paint_star),
)


class _Scene:
    """An image being drawn, and which object each of its pixels shows."""

    def __init__(self, ground: np.ndarray, unit: float):
        self.pixels = ground  # [h, w, 3] uint8
        self.unit = unit  # pixels
        self._shown = np.full(ground.shape[:2], -1, np.int32)
        self._full_counts: list[int] = []  # pixels of each object, also those hidden or outside
        self._kinds: list[tuple[_Kind, bool]] = []

    def place(self, kind: _Kind, sprite: np.ndarray, *, crowd: bool, random: np.random.Generator) -> bool:
        """Put a sprite [rows, columns, 4] uint8 somewhere; False where no place hides little enough of the others."""
        rows, columns = sprite.shape[:2]
        height, width = self._shown.shape
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
            box = _extent(shown == number)
            if box is None or min(box[2:]) < _LEAST_SIDE * self.unit:
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
        """COCO's, without the ids."""
        found = []
        for number, (kind, crowd) in enumerate(self._kinds):
            seen = self._shown == number
            found.append({"category_id": kind.category_id, "bbox": list(_extent(seen)), "area": int(seen.sum()),
                          "iscrowd": int(crowd)})
        return found


def _extent(mask: np.ndarray) -> tuple[int, int, int, int] | None:
    """x, y, width, height of the pixels that are set; None where none is."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not rows.size:
        return None
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def _sprite(kind: _Kind, *, side: float, random: np.random.Generator) -> np.ndarray:
    """One object whose longer side has `side` pixels: [rows, columns, 4] uint8, cut to what is not transparent."""
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
    left, top, columns, rows = _extent(small[..., 3] >= 128)
    return small[top : top + rows, left : left + columns]


def _shoal(*, unit: float, random: np.random.Generator) -> np.ndarray:
    """Many fish too small to annotate one by one, as one sprite."""
    rows, columns = int(random.uniform(28, 44) * unit), int(random.uniform(36, 60) * unit)
    region = np.zeros((rows, columns, 4), np.uint8)
    for _ in range(int(random.integers(14, 26))):
        fish = _sprite(_FISH, side=random.uniform(8, 11) * unit, random=random)
        top = int(random.integers(0, rows - fish.shape[0] + 1))
        left = int(random.integers(0, columns - fish.shape[1] + 1))
        part = region[top : top + fish.shape[0], left : left + fish.shape[1]]
        part[:] = np.where(fish[..., 3:] >= part[..., 3:], fish, part)
    left, top, columns, rows = _extent(region[..., 3] >= 128)
    return region[top : top + rows, left : left + columns]


def _noise(size: tuple[int, int], *, cells: int, random: np.random.Generator) -> np.ndarray:
    """Smooth noise of as many cells across: [h, w] float32 from 0 to 1."""
    coarse = Image.fromarray(random.integers(0, 256, (cells, cells), dtype=np.uint8))
    return np.asarray(coarse.resize(size[::-1], Image.Resampling.BICUBIC), np.float32) / 255


def _ground(size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """A textured background, [h, w, 3] uint8."""
    first, second = np.array(_GROUND_COLOURS[random.integers(len(_GROUND_COLOURS))], np.float32)
    blend = 0.65 * _noise(size, cells=int(random.integers(3, 7)), random=random)
    blend += 0.35 * _noise(size, cells=int(random.integers(10, 40)), random=random)
    if random.random() < 0.4:
        y, x = np.mgrid[: size[0], : size[1]].astype(np.float32)
        angle, period = random.uniform(0, math.pi), random.uniform(8, 24) * max(size) / _UNITS
        blend += 0.15 * np.sin((x * math.cos(angle) + y * math.sin(angle)) * (2 * math.pi / period) + 4 * blend)
    grain = random.normal(0, 5, (*size, 1)).astype(np.float32)
    colour = first + (second - first) * blend[..., None] + grain
    return np.clip(colour * random.uniform(0.75, 1.1), 0, 255).astype(np.uint8)


def draw_image(size: tuple[int, int], random: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    """One picture of (height, width): [h, w, 3] uint8 and its COCO annotations (without the ids)."""
    scene = _Scene(_ground(size, random), max(size) / _UNITS)
    kind_of_image = random.random()
    if kind_of_image < _EMPTY_SHARE:
        return scene.pixels, []
    crowded = kind_of_image < _EMPTY_SHARE + _CROWDED_SHARE
    if kind_of_image > 1 - _SHOAL_SHARE:
        scene.place(_FISH, _shoal(unit=scene.unit, random=random), crowd=True, random=random)
    sides = []
    for _ in range(int(random.integers(9, 15) if crowded else random.integers(1, 7))):
        kind = _KINDS[random.integers(len(_KINDS))]
        low, high = kind.side
        high = min(low + (high - low) * (0.35 if crowded else 1.0), 0.9 * min(size) / scene.unit)
        sides.append((math.exp(random.uniform(math.log(low), math.log(high))), kind))
    for side, kind in sorted(sides, key=lambda entry: -entry[0]):  # the large ones lie below
        sprite = _sprite(kind, side=side * scene.unit, random=random)
        scene.place(kind, sprite, crowd=False, random=random)
    return scene.pixels, scene.annotations()


def draw_data_set(
    folder: str | Path, *, images: dict[str, int], image_size: tuple[int, int] = (128, 128), seed: int = 0
) -> None:
    """Draw `images[split]` pictures for each split.

    Writes `<folder>/<split>/<image id>.jpg` and `<folder>/annotations/instances_<split>.json`. Each side of an image is
    0.8 to 1.25 times that of `image_size` (height, width). Image ids differ between the splits. An image depends on the
    seed, the split's name and its number in it alone.
    """
    if min(image_size) < 32 or min(images.values(), default=0) < 1 or seed < 0:
        raise InputError(f"drawing {images} images of {image_size[0]}x{image_size[1]} with seed {seed}; wanted at "
                         "least one image a split, sides of at least 32 and a seed of at least 0")
    folder = Path(folder)
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    first_id = 1
    for split, count in images.items():
        (folder / split).mkdir(exist_ok=True)
        coco = _draw_split(folder / split, range(first_id, first_id + count), image_size=image_size,
                           seeds=[seed, zlib.crc32(split.encode())])
        path = folder / "annotations" / f"instances_{split}.json"
        write_atomically(path, json.dumps(coco) + "\n")
        first_id += count


def _draw_split(folder: Path, image_ids: range, *, image_size: tuple[int, int], seeds: list[int]) -> dict:
    """Write the JPEGs of one split; returns COCO's dictionary."""
    images, annotations = [], []
    for number, image_id in enumerate(image_ids):
        random = np.random.default_rng([*seeds, number])
        height, width = (round(side * random.uniform(0.8, 1.25)) for side in image_size)
        pixels, objects = draw_image((height, width), random)
        file_name = f"{image_id:06d}.jpg"
        Image.fromarray(pixels).save(folder / file_name, quality=92)
        images.append({"id": image_id, "file_name": file_name, "height": height, "width": width})
        for entry in objects:
            annotations.append({"id": len(annotations) + 1, "image_id": image_id, **entry})
    categories = [{"id": kind.category_id, "name": kind.name, "supercategory": "drawn"} for kind in _KINDS]
    return {"images": images, "annotations": annotations, "categories": categories}


def _define_flags() -> None:
    flags.DEFINE_string("output_dir", None, "Folder to draw the data set into.", required=True)
    flags.DEFINE_integer("train_images", 1000, "Images of the split 'train'.")
    flags.DEFINE_integer("val_images", 200, "Images of the split 'val'.")
    flags.DEFINE_string("image_size", "128", "Typical size in pixels: one side, or height x width such as 480x640.")
    flags.DEFINE_integer("seed", 0, "The same seed draws the same bytes.")


def _parse_size(text: str) -> tuple[int, int]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise InputError(f"--image_size={text}: wanted one side, or height x width such as 480x640")
    return int(sides[0]), int(sides[-1])


def main() -> None:
    """Draw what the flags say."""
    values = flags.FLAGS
    draw_data_set(
        values.output_dir,
        images={"train": values.train_images, "val": values.val_images},
        image_size=_parse_size(values.image_size),
        seed=values.seed,
    )
    print(f"drew {values.train_images} + {values.val_images} images into {values.output_dir}")


if __name__ == "__main__":
    _define_flags()
    command_line.run(main, ends_at_once=True)
