"""Make large images with small objects of a data set in COCO's format: its images side by side, each scaled to a cell.

`python benchmarks/montages.py $DATA/nuclei runs/nuclei_montages --cell=256 --across=5`
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image


def montage(
    folder: Path, images: list[dict], objects: dict[int, list[dict]], *, cell: int, across: int
) -> tuple[Image.Image, list[dict]]:
    """Return the montage of images, row by row, and its annotations without ids."""
    made, annotations = Image.new("RGB", (cell * across, cell * -(-len(images) // across))), []
    for number, image in enumerate(images):
        row, column = divmod(number, across)
        scale = cell / max(image["width"], image["height"])
        with Image.open(folder / image["file_name"]) as pixels:
            size = round(image["width"] * scale), round(image["height"] * scale)
            made.paste(pixels.convert("RGB").resize(size, Image.Resampling.LANCZOS), (column * cell, row * cell))
        for annotation in objects.get(image["id"], ()):
            x, y, width, height = (side * scale for side in annotation["bbox"])
            annotations.append(
                {
                    "category_id": annotation["category_id"],
                    "iscrowd": annotation.get("iscrowd", 0),
                    "bbox": [x + column * cell, y + row * cell, width, height],
                    "area": width * height,
                }
            )
    return made, annotations


def main() -> None:
    """Write images/SPLIT_NUMBER.jpg and annotations/instances_SPLIT.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("output_dir")
    parser.add_argument("--cell", type=int, default=256, help="pixels of the longer side of an image")
    parser.add_argument("--across", type=int, default=5, help="images side by side, and rows")
    arguments = parser.parse_args()
    data, made = Path(arguments.data), Path(arguments.output_dir)
    for name in ("images", "annotations"):
        (made / name).mkdir(parents=True, exist_ok=True)
    for split in ("train", "val", "test"):
        content = json.loads((data / f"annotations/instances_{split}.json").read_text(encoding="utf-8"))
        objects: dict[int, list[dict]] = {}
        for annotation in content["annotations"]:
            objects.setdefault(annotation["image_id"], []).append(annotation)
        order = np.random.default_rng(0).permutation(len(content["images"])).tolist()
        images, annotations, count = [], [], arguments.across**2
        for first in range(0, len(order), count):
            chosen = [content["images"][number] for number in order[first : first + count]]
            pixels, of_image = montage(data / "images", chosen, objects, cell=arguments.cell, across=arguments.across)
            name, image_id = f"{split}_{first // count + 1:02d}.jpg", len(images) + 1
            pixels.save(made / "images" / name, quality=95)
            images.append({"id": image_id, "file_name": name, "width": pixels.width, "height": pixels.height})
            annotations += [
                {"id": len(annotations) + number, "image_id": image_id, **annotation}
                for number, annotation in enumerate(of_image, start=1)
            ]
        made_of = {"images": images, "annotations": annotations, "categories": content["categories"]}
        (made / f"annotations/instances_{split}.json").write_text(json.dumps(made_of), encoding="utf-8")
        print(f"{split}: {len(images)} images, {len(annotations)} objects")


if __name__ == "__main__":
    main()
