"""Shared by the trainings of peers: flags, the data sets of compare_recipes.py, and the AP on a split."""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

Detections = Iterable[tuple[list[float], float, int]]  # box (x_min, y_min, x_max, y_max) in pixels, score, class number


def training_flags(description: str) -> argparse.ArgumentParser:
    """Return a parser of the flags of every training."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--data", type=Path, required=True, help="Folder with images/ and annotations/instances_*.json."
    )
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--size", type=int, default=320, help="Longer side of the input in pixels.")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def annotations(data: Path, split: str) -> dict[str, Any]:
    """Return the content of the annotation file of a split."""
    return json.loads(_file(data, split).read_text())


def _file(data: Path, split: str) -> Path:
    return data / "annotations" / f"instances_{split}.json"


def evaluate(data: Path, split: str, detect: Callable[[Path], Detections]) -> dict[str, float]:
    """Return COCO's AP and AP50 on a split; `detect` returns the detections of an image, classes counted from 0."""
    truth = COCO(_file(data, split))
    categories, detections = sorted(truth.getCatIds()), []
    for image in truth.dataset["images"]:
        for (x_min, y_min, x_max, y_max), score, row in detect(data / "images" / image["file_name"]):
            detections.append(
                {
                    "image_id": image["id"],
                    "category_id": categories[int(row)],
                    "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
                    "score": score,
                }
            )
    if not detections:
        return {"AP": 0.0, "AP50": 0.0}
    measured = COCOeval(truth, truth.loadRes(detections), "bbox")
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    return {"AP": float(measured.stats[0]), "AP50": float(measured.stats[1])}
