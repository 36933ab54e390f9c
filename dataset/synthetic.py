"""The synthetic data set: drawn images with exact boxes and masks, as JPEGs and COCO annotation files.

Objects of five classes of very different size and shape lie on a textured background, occlude each other and cross the
border; some images are crowded, some contain a group annotated as one crowd region, a few are empty. A mask covers
exactly the visible pixels of its object, and the box encloses them. The same seed generates the same bytes.

Lengths are in units of 1/128 of the longer side of the image, pixels of a network input of 128.
"""

import colorsys
import io
import itertools
import json
import math
import zlib
from pathlib import Path
from typing import NamedTuple

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

import numpy as np
from absl import flags
from PIL import Image, ImageDraw

from dataset.input.tiling import MIN_TILE, is_tile_size
from object_detection.coco.run_length_masks import mask_bounds, run_lengths
from program_support import command_line
from program_support.atomic_files import report_write_errors, write_bytes, write_text
from program_support.checked_fields import Count, CountOrZero
from program_support.claimed_outputs import claim_folder
from program_support.command_line import define_flag
from program_support.errors import InputError

_UNITS = 128
_OVERSAMPLING = 4  # shapes are drawn larger by this factor and averaged, for smooth edges
_LEAST_SIDE = 10.0  # units; smaller objects cannot be detected at an input of 128
_LEAST_SEEN = 0.6  # minimum visible fraction of each object's pixels
_LEAST_INSIDE = 0.7  # minimum fraction of an object's pixels inside the image
_ATTEMPTS = 12  # attempts to find a position
_EMPTY_SHARE, _CROWDED_SHARE, _GROUP_SHARE = 0.04, 0.12, 0.06  # fractions of the images
_ELONGATED = 0.5  # aspect ratio below which objects lie or stand


def _circle(radius: float) -> np.ndarray:
    angles = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    return radius * np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _polygon(points: str) -> np.ndarray:
    """Return the points [n, 2] of a polygon as SVG writes them: x,y x,y .."""
    return np.array([point.split(",") for point in points.split()], float)


_RAYS = np.tile([1.0, 0.48], 5)[:, None] * _circle(1.0)[:: 48 // 10][:10]


class Kind(NamedTuple):
    """One class of objects: polygons in a square from -1 to 1, each with the brightness of its color."""

    category_id: int  # ids have gaps, as real data sets do
    name: str
    side: tuple[float, float]  # range of the longer side, units
    aspect: float  # height by width
    tilt: float  # maximum rotation in degrees, in both directions
    hue: tuple[float, float]
    polygons: tuple[tuple[np.ndarray, float], ...]


KINDS = (
    Kind(1, "ball", (22, 56), 1.0, 180, (0.0, 1.0), ((_circle(1.0), 0.9), (_circle(0.5), 0.5))),
    Kind(
        2,
        "fish",
        (32, 68),
        0.55,
        17,
        (0.0, 0.1),
        ((_polygon("-0.3,0 -1,-0.8 -1,0.8"), 0.6), (_circle(1.0) * (0.8, 0.7) + (0.2, 0), 0.9)),
    ),
    Kind(
        4,
        "tree",
        (40, 96),
        1.8,
        3,
        (0.28, 0.42),
        ((_polygon("-0.18,0.5 0.18,0.5 0.18,1 -0.18,1"), 0.25), (_polygon("-1,0.7 1,0.7 0,-1"), 0.5)),
    ),
    Kind(
        7,
        "pencil",
        (52, 92),
        0.25,
        7,
        (0.0, 1.0),
        ((_polygon("-1,-1 0.55,-1 0.55,1 -1,1"), 0.8), (_polygon("0.55,-1 0.55,1 1,0"), 0.4)),
    ),
    Kind(9, "star", (20, 34), 1.0, 180, (0.11, 0.16), ((_RAYS, 0.65), (0.7 * _RAYS, 0.95))),
)
_IN_GROUPS = KINDS[1]


def draw_sprite(kind: Kind, *, side: float, random: np.random.Generator) -> Image.Image:
    """Draw one object whose longer side has `side` pixels, in RGBA, cropped to its opaque pixels."""
    aspect = kind.aspect * math.exp(random.normal(0, 0.06))
    half = np.array([min(1, 1 / aspect), min(1, aspect)]) * side * _OVERSAMPLING / 2
    sprite = Image.new("RGBA", tuple(np.ceil(2 * half).astype(int).tolist()))
    hue, saturation = random.uniform(*kind.hue) % 1.0, random.uniform(0.7, 0.95)
    for points, value in kind.polygons:
        color = np.multiply(colorsys.hsv_to_rgb(hue, saturation, value * random.uniform(0.9, 1.05)), 255).astype(int)
        ImageDraw.Draw(sprite).polygon(((points + 1) * half).ravel().tolist(), fill=(*color.tolist(), 255))
    if random.random() < 0.5:
        sprite = sprite.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    standing = 90 * (kind.aspect < _ELONGATED and random.random() < 0.5)
    sprite = sprite.rotate(random.uniform(-kind.tilt, kind.tilt) + standing, Image.Resampling.BILINEAR, expand=True)
    return _cropped(sprite.reduce(_OVERSAMPLING))


def _draw_group(*, unit: float, random: np.random.Generator) -> Image.Image:
    """Draw many objects, too small to annotate separately, as one sprite."""
    rows, columns = (random.uniform([28, 36], [44, 60]) * unit).astype(int).tolist()
    group = Image.new("RGBA", (columns, rows))
    for _ in range(int(random.integers(14, 26))):
        sprite = draw_sprite(_IN_GROUPS, side=random.uniform(8, 11) * unit, random=random)
        room = columns - sprite.width, rows - sprite.height
        group.alpha_composite(sprite, tuple(random.integers(0, np.add(room, 1)).tolist()))
    return _cropped(group)


def _solid(sprite: Image.Image) -> np.ndarray:
    return np.asarray(sprite)[..., 3] >= 128


def _cropped(sprite: Image.Image) -> Image.Image:
    top, left, bottom, right = mask_bounds(_solid(sprite))
    return sprite.crop((left, top, right, bottom))


class Scene:
    """An image being drawn, and the visible object of each pixel."""

    def __init__(self, ground: np.ndarray, unit: float):
        self.pixels = ground  # [h, w, 3] uint8
        self.unit = unit  # pixels
        self._shown = np.full(ground.shape[:2], -1)
        self._objects: list[tuple[Kind, bool, int]] = []  # and the pixels of each, also those hidden or outside

    def place(self, kind: Kind, sprite: Image.Image, *, crowd: bool, random: np.random.Generator) -> bool:
        """Place an RGBA sprite at random; return False if all positions hide too much of others."""
        (columns, rows), (height, width) = sprite.size, self._shown.shape
        placed = (kind, crowd, int(_solid(sprite).sum()))
        objects = [*self._objects, placed]
        for _ in range(_ATTEMPTS):
            top = int(random.integers(-rows // 4, height - rows * 3 // 4 + 1))
            left = int(random.integers(-columns // 4, width - columns * 3 // 4 + 1))
            layer = Image.new("RGBA", (width, height))
            layer.paste(sprite, (left, top))
            solid = _solid(layer)
            shown = np.where(solid, len(self._objects), self._shown)
            touched = {*self._shown[solid].tolist(), len(self._objects)} - {-1}
            if solid.sum() >= _LEAST_INSIDE * placed[2] and all(
                self._is_visible(shown == number, objects[number][2]) for number in touched
            ):
                self._shown, self._objects = shown, objects
                color, opacity = np.split(np.asarray(layer) / np.float32((1, 1, 1, 255)), [3], axis=-1)
                self.pixels = (self.pixels * (1 - opacity) + color * opacity + 0.5).astype(np.uint8)
                return True
        return False

    def _is_visible(self, seen: np.ndarray, full_count: int) -> bool:
        return min(_extent(seen)[2:]) >= _LEAST_SIDE * self.unit and seen.sum() >= _LEAST_SEEN * full_count

    def annotations(self) -> list[dict]:
        """Return the objects in COCO format without ids, with run lengths of the visible pixels."""
        return [
            {
                "category_id": kind.category_id,
                "bbox": list(_extent(seen)),
                "area": int(seen.sum()),
                "iscrowd": int(crowd),
                "segmentation": run_lengths(seen),
            }
            for number, (kind, crowd, _) in enumerate(self._objects)
            for seen in [self._shown == number]
        ]


def _extent(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Return the box (x, y, width, height) of the set pixels; zeros if there are none."""
    top, left, bottom, right = mask_bounds(mask)
    return left, top, right - left, bottom - top


def _draw_ground(size: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Return a textured background between two random light colors, [h, w, 3] uint8."""
    first, second = random.uniform(110, 225, (2, 1)) + random.uniform(-30, 30, (2, 3))
    cells = random.integers(0, 256, (int(random.integers(3, 30)),) * 2, dtype=np.uint8)
    blend = np.asarray(Image.fromarray(cells).resize(size[::-1], Image.Resampling.BICUBIC))[..., None] / 255
    return np.clip(first + (second - first) * blend + random.normal(0, 5, (*size, 1)), 0, 255).astype(np.uint8)


def draw_image(size: tuple[int, int], random: np.random.Generator) -> tuple[np.ndarray, list[dict]]:
    """Draw one image of (height, width): [h, w, 3] uint8 and its COCO annotations without ids."""
    scene = Scene(_draw_ground(size, random), max(size) / _UNITS)
    kind_of_image = random.random()
    if kind_of_image < _EMPTY_SHARE:
        return scene.pixels, []
    crowded = kind_of_image < _EMPTY_SHARE + _CROWDED_SHARE
    if kind_of_image > 1 - _GROUP_SHARE:
        scene.place(_IN_GROUPS, _draw_group(unit=scene.unit, random=random), crowd=True, random=random)
    sides = []
    for _ in range(int(random.integers(9, 15) if crowded else random.integers(1, 7))):
        kind = KINDS[random.integers(len(KINDS))]
        low, high = kind.side
        high = min(low + (high - low) * (0.35 if crowded else 1.0), 0.9 * min(size) / scene.unit)
        low = min(low, high)  # very elongated images would have it above
        sides.append((math.exp(random.uniform(math.log(low), math.log(high))), kind))
    for side, kind in sorted(sides, key=lambda entry: -entry[0]):  # large objects are drawn first
        scene.place(kind, draw_sprite(kind, side=side * scene.unit, random=random), crowd=False, random=random)
    return scene.pixels, scene.annotations()


def draw_data_set(
    folder: str | Path, *, images: dict[str, int], image_size: tuple[int, int] = (128, 128), seed: int = 0
) -> None:
    """Draw `images[split]` images for each split.

    Writes `<folder>/<split>/<image id>.jpg` and `<folder>/annotations/instances_<split>.json`. Each side of an image is
    0.8 to 1.25 times that of `image_size` (height, width). Image ids differ between the splits. An image depends only
    on the seed, the split's name and its number in the split.

    Raises:
        InputError: a file cannot be written.
    """
    folder = Path(folder)
    categories = [{"id": kind.category_id, "name": kind.name, "supercategory": "drawn"} for kind in KINDS]
    image_ids = itertools.count(1)
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("annotations", *images):
            claim_folder(folder / name)  # others' images may have the same names
        for split, count in images.items():
            entries: list[dict] = []
            annotations: list[dict] = []
            for number, image_id in zip(range(count), image_ids, strict=False):
                random = np.random.default_rng([seed, zlib.crc32(split.encode()), number])
                height, width = (round(side * random.uniform(0.8, 1.25)) for side in image_size)
                pixels, objects = draw_image((height, width), random)
                file_name = f"{image_id:06d}.jpg"
                Image.fromarray(pixels).save(encoded := io.BytesIO(), "JPEG", quality=92)
                write_bytes(folder / split / file_name, encoded.getvalue())  # Pillow does not detect partial writes
                entries.append({"id": image_id, "file_name": file_name, "height": height, "width": width})
                for entry in objects:
                    annotations.append({"id": len(annotations) + 1, "image_id": image_id, **entry})
            coco = {"images": entries, "annotations": annotations, "categories": categories}
            write_text(folder / "annotations" / f"instances_{split}.json", json.dumps(coco) + "\n")


def _define_flags() -> None:
    flags.DEFINE_string("output_dir", None, "Output folder for the data set.", required=True)
    define_flag("train_images", Count, 1000, "Number of images in the train split.")
    define_flag("val_images", Count, 200, "Number of images in the val split.")
    flags.DEFINE_string("image_size", "128", "Typical image size in pixels: one side, or WIDTHxHEIGHT such as 640x480.")
    define_flag("seed", CountOrZero, 0, "Random seed; the same seed generates the same files, byte for byte.")


def main() -> None:
    """Generate the data set that the flags describe."""
    values = flags.FLAGS
    if not is_tile_size(values.image_size):
        raise InputError(f"--image_size={values.image_size}: expected one side of at least {MIN_TILE}, or WIDTHxHEIGHT")
    sides = [int(side) for side in values.image_size.lower().split("x")]
    images = {"train": values.train_images, "val": values.val_images}
    draw_data_set(values.output_dir, images=images, image_size=(sides[-1], sides[0]), seed=values.seed)
    print(f"drew {values.train_images} + {values.val_images} images into {values.output_dir}")


if __name__ == "__main__":
    _define_flags()
    command_line.run(main, ends_at_once=True)
