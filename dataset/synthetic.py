"""The synthetic data set: drawn images with exact boxes and masks, as JPEGs and COCO annotation files.

Objects of five classes of very different size and shape lie on a textured background, occlude each other and cross the
border; some images are crowded, some contain a shoal annotated as one crowd region, a few are empty. A mask covers
exactly the visible pixels of its object, and the box encloses them. The same seed generates the same bytes.
"""

import io
import json
import zlib
from pathlib import Path

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

import numpy as np
from absl import flags
from PIL import Image

from dataset.synthetic_images.scenes import draw_image
from dataset.synthetic_images.shapes import KINDS
from program_support import command_line
from program_support.atomic_files import report_write_errors, write_bytes, write_text
from program_support.checked_fields import CountOrZero
from program_support.claimed_outputs import claim_folder
from program_support.command_line import define_flag
from program_support.errors import InputError


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
    if min(image_size) < 32 or min(images.values(), default=0) < 1 or seed < 0:
        raise InputError(
            f"drawing {images} images of {image_size[1]}x{image_size[0]} with seed {seed}; expected at "
            "least one image per split, sides of at least 32 and a seed of at least 0"
        )
    folder = Path(folder)
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("annotations", *images):
        claim_folder(folder / name)  # others' images may have the same names
    first_id = 1
    for split, count in images.items():
        coco = _draw_split(
            folder / split,
            range(first_id, first_id + count),
            image_size=image_size,
            seeds=[seed, zlib.crc32(split.encode())],
        )
        path = folder / "annotations" / f"instances_{split}.json"
        with report_write_errors(path):
            write_text(path, json.dumps(coco) + "\n")
        first_id += count


def _draw_split(folder: Path, image_ids: range, *, image_size: tuple[int, int], seeds: list[int]) -> dict:
    """Write the JPEGs of one split and return COCO's dictionary."""
    images: list[dict] = []
    annotations: list[dict] = []
    for number, image_id in enumerate(image_ids):
        random = np.random.default_rng([*seeds, number])
        height, width = (round(side * random.uniform(0.8, 1.25)) for side in image_size)
        pixels, objects = draw_image((height, width), random)
        file_name = f"{image_id:06d}.jpg"
        Image.fromarray(pixels).save(encoded := io.BytesIO(), "JPEG", quality=92)
        with report_write_errors(folder / file_name):
            # Written by Python, because Pillow does not detect partial writes.
            write_bytes(folder / file_name, encoded.getvalue())
        images.append({"id": image_id, "file_name": file_name, "height": height, "width": width})
        for entry in objects:
            annotations.append({"id": len(annotations) + 1, "image_id": image_id, **entry})
    categories = [{"id": kind.category_id, "name": kind.name, "supercategory": "drawn"} for kind in KINDS]
    return {"images": images, "annotations": annotations, "categories": categories}


def _define_flags() -> None:
    flags.DEFINE_string("output_dir", None, "Output folder for the data set.", required=True)
    define_flag("train_images", CountOrZero, 1000, "Number of images in the train split.")
    define_flag("val_images", CountOrZero, 200, "Number of images in the val split.")
    flags.DEFINE_string("image_size", "128", "Typical image size in pixels: one side, or WIDTHxHEIGHT such as 640x480.")
    define_flag("seed", CountOrZero, 0, "Random seed; the same seed generates the same files, byte for byte.")


def _parse_size(text: str) -> tuple[int, int]:
    """Return (height, width)."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise InputError(f"--image_size={text}: expected one side, or WIDTHxHEIGHT such as 640x480")
    return int(sides[-1]), int(sides[0])


def main() -> None:
    """Generate the data set that the flags describe."""
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
