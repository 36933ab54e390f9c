"""Records for a matrix without data of one's own: drawn, then converted as a user's images are."""

import json
import subprocess
import sys
from pathlib import Path

from dataset.synthetic import draw_data_set
from program_support.atomic_files import unfinished_folder

ROOT = Path(__file__).resolve().parents[2]
DRAWN_IMAGES = 64


def drawn_records(folder: Path, image_size: tuple[int, int]) -> str:
    """Glob of records of pictures of about this height and width, with masks where the drawing has them; drawn once."""
    height, width = image_size
    records = folder / f"drawn-{height}x{width}"
    if not records.is_dir():
        with unfinished_folder(records) as unfinished:
            draw_data_set(unfinished, images={"train": DRAWN_IMAGES}, image_size=image_size)
            annotations = unfinished / "annotations" / "instances_train.json"
            has_masks = "segmentation" in json.loads(annotations.read_text(encoding="utf-8"))["annotations"][0]
            subprocess.run([sys.executable, str(ROOT / "dataset" / "create_coco_tfrecord.py"),
                            f"--image_dir={unfinished / 'train'}", f"--object_annotations_file={annotations}",
                            f"--output_file_prefix={unfinished / 'train'}", "--num_shards=8",
                            f"--include_masks={has_masks}"], check=True, stdout=subprocess.DEVNULL)
            unfinished.rename(records)
    return str(records / "train-*.tfrecord")
