"""Measure on random halves of a data set how often a threshold of `eval.py --miss_rate` misses more than it states.

`python benchmarks/miss_rate_coverage.py ANNOTATIONS.json ... --results=detections.json [--miss_rate=0.05]
[--confidence=0.9] [--splits=100]`

The annotations are COCO files, the results those of `infer.py` for the same images. Each threshold is found on one half
and its misses are counted on the other half, and on all images. The first count also varies with the other half.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import ground_truth_from_dataset
from object_detection.coco.miss_rate import ALL_CLASSES, miss_rate_thresholds, object_scores
from object_detection.coco.results import DetectionRows


def merged(paths: list[str]) -> dict:
    """Return the data sets of COCO files as one, with new ids of images."""
    images: list[dict] = []
    annotations: list[dict] = []
    for path in paths:
        content = json.loads(Path(path).read_text())
        numbers = {image["id"]: len(images) + i for i, image in enumerate(content["images"], 1)}
        images += [{**image, "id": numbers[image["id"]]} for image in content["images"]]
        annotations += [{**one, "image_id": numbers[one["image_id"]]} for one in content["annotations"]]
    numbered = [{**one, "id": i} for i, one in enumerate(annotations, 1)]
    return {"images": images, "annotations": numbered, "categories": content["categories"]}


def rows_of(results: list[dict], ids: dict[str, int]) -> DetectionRows:
    """Return the detections of a results file in all images."""
    boxes = np.array([one["bbox"] for one in results])
    boxes[:, 2:] += boxes[:, :2]
    return DetectionRows(
        image_ids=np.array([ids[one["file_name"]] for one in results]),
        boxes=boxes[:, [1, 0, 3, 2]],
        scores=np.array([one["score"] for one in results]),
        category_ids=np.array([one["category_id"] for one in results]),
        evaluated_ids=np.array(list(ids.values())),
        masks=None,
    )


def missed(comparison: Comparison, k: int | None, threshold: float) -> float:
    """Return the share of missed objects of a class (None: of all) from a threshold on."""
    chosen = ~comparison.flags.ignored & (k is None or comparison.objects.classes == k)
    return float((object_scores(comparison)[chosen] < threshold).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", nargs="+")
    parser.add_argument("--results", required=True)
    parser.add_argument("--miss_rate", type=float, default=0.05)
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    data = merged(options.annotations)
    evaluator = CocoEvaluator(ground_truth_from_dataset(data, source="the annotations"))
    ids = {image["file_name"]: image["id"] for image in data["images"]}
    rows = rows_of(json.loads(Path(options.results).read_text()), ids)
    whole, random = evaluator.compare(rows), np.random.default_rng(0)
    guarantee = {"miss_rate": options.miss_rate, "confidence": options.confidence}
    print(miss_rate_thresholds(whole, **guarantee).table(), end="\n\n")
    measured: dict[str, list] = {}
    for _ in range(options.splits):
        halves = np.array_split(random.permutation(rows.evaluated_ids), 2)
        half, other = (evaluator.compare(rows._replace(evaluated_ids=part)) for part in halves)
        found = miss_rate_thresholds(half, **guarantee)
        for k, (name, one) in enumerate({**found.classes, ALL_CLASSES: found.overall}.items()):
            if one.score is not None:
                number = k if name in found.classes else None
                rates = [missed(part, number, one.score) for part in (other, whole)]
                measured.setdefault(name, []).append([one.score, one.miss_rate, *rates, one.false_positives])
    print(f"{options.splits} random halves of {len(ids)} images")
    print("class: halves with a threshold, its mean, missed on its half, on the other, false positives per image,")
    print("more missed than stated on the other half, on all images")
    for name, entries in measured.items():
        score, own, other, _, false = np.mean(entries, axis=0)
        above = [int((np.array(entries)[:, place] > options.miss_rate).sum()) for place in (2, 3)]
        print(f"{name}: {len(entries)}, {score:.4f}, {own:.4f}, {other:.4f}, {false:.2f}, {above[0]}, {above[1]}")


if __name__ == "__main__":
    main()
