"""Measure accuracy, size and time of masks in the input: `python benchmarks/masks.py --records='DIR/val-*'`.

Each mask of the records is resampled to S x S cells of its box, as in the input, pasted back into the image and
compared with the original by IoU. Then size and time are measured for 100 masks of one image of 832 x 1344 pixels.
"""

import argparse
import glob
import io
import os
import time
import tracemalloc
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from PIL import Image

from dataset.files.image_decoding import image_size
from dataset.input.crop import crop_masks, decoded_mask
from dataset.input.resize import Letterbox
from dataset.records.record_index import RecordIndex, RecordReader, index_records
from dataset.records.schema import parse_record
from object_detection.coco.mask_pasting import pasted_masks

INPUT, OBJECTS = (832, 1344), 100
SMALL, LARGE = 32**2, 96**2  # areas in pixels, COCO's limits


def records_with_masks(index: RecordIndex) -> Iterator[dict[str, tf.Tensor]]:
    """Yield the records of images with objects."""
    reader = RecordReader(index)
    for number in range(len(index)):
        record = parse_record(reader.read([number])[0], with_masks=True)
        if len(record["masks"]):
            yield record


def overlaps(record: dict[str, tf.Tensor], side: int, *, in_whole_pixels: bool) -> Iterator[tuple[int, float]]:
    """Return area and IoU of each non-empty mask after resampling to side x side cells."""
    source_size = image_size(record["encoded"])
    crop, original = Letterbox(INPUT).whole(source_size), np.tile(source_size, 2)
    boxes = record["boxes"] * np.tile(crop.size, 2)
    masks, _ = crop_masks(
        record["masks"], boxes, crop, source_size=source_size, side=side, file_name=record["file_name"]
    )
    pasted = pasted_masks(
        masks, record["boxes"] * original, size=(*source_size.numpy(),), in_whole_pixels=in_whole_pixels
    )
    for png, found in zip(record["masks"].numpy(), pasted, strict=True):
        original = decoded_mask(png, source_size.numpy(), b"") != 0
        if original.any():
            yield int(original.sum()), (original & found).sum() / (original | found).sum()


def print_error(index: RecordIndex, side: int, *, in_whole_pixels: bool) -> None:
    """Print a line of the table."""
    found = [
        values
        for record in records_with_masks(index)
        for values in overlaps(record, side, in_whole_pixels=in_whole_pixels)
    ]
    pixels, iou = map(np.array, zip(*found, strict=True))
    small, large = pixels < SMALL, pixels >= LARGE
    means = (iou, iou[small], iou[~small & ~large], iou[large])
    print(
        f"{side:4} {'whole' if in_whole_pixels else 'exact':6}"
        + "".join(f"{values.mean():8.4f}" for values in means)
        + f"{np.quantile(iou, 0.05):8.4f} {(iou < 0.5).sum():6} of {len(iou)}"
    )


def print_cost(side: int) -> None:
    """Print the size and time of 100 discs whose boxes are half the image."""
    y, x = np.mgrid[: INPUT[0], : INPUT[1]]
    file = io.BytesIO()
    Image.fromarray((np.hypot(y - INPUT[0] / 2, x - INPUT[1] / 2) < 300).astype(np.uint8)).save(file, "PNG")
    height, width = INPUT
    boxes = np.tile(np.float32([height / 2 - 300, width / 2 - 300, height / 2 + 300, width / 2 + 300]), (OBJECTS, 1))
    source_size = tf.constant(INPUT)
    crop = Letterbox(INPUT).whole(source_size)
    pngs = tf.constant([file.getvalue()] * OBJECTS)
    tracemalloc.start()
    masks, _ = crop_masks(pngs, boxes, crop, source_size=source_size, side=side, file_name=tf.constant(""))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    start = time.perf_counter()
    crop_masks(pngs, boxes, crop, source_size=source_size, side=side, file_name=tf.constant(""))
    milliseconds = (time.perf_counter() - start) * 1000
    print(
        f"{OBJECTS} objects at {height} x {width}, side {side}: {masks.numpy().nbytes / 1e6:.2f} MB in the batch, "
        f"peak {peak / 1e6:.2f} MB, {milliseconds:.0f} ms; full-image masks {OBJECTS * height * width / 1e6:.0f} MB"
    )


def main() -> None:
    """Print a table of IoU, and a line of size and time for each side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", required=True, help="Glob of TFRecords with masks.")
    parser.add_argument("--sides", type=int, nargs="+", default=[28, 56, 112])
    arguments = parser.parse_args()
    files = sorted(glob.glob(arguments.records))
    if not files:
        parser.error(f"--records={arguments.records}: no such file")
    index = index_records(files)
    print("side pasted     all   small  medium   large   5 %     IoU < 0.5")
    for side in arguments.sides:
        for in_whole_pixels in (False, True):
            print_error(index, side, in_whole_pixels=in_whole_pixels)
    for side in arguments.sides:
        print_cost(side)


if __name__ == "__main__":
    main()
