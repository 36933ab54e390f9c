"""Measure the time from detections in memory to the 12 COCO metrics: `python benchmarks/evaluation.py [--images=5000]`.

Ground truth and detections are synthetic: 7 objects and 100 detections per image; a matching detection is a few pixels
off. pycocotools, the reference implementation, is timed on the same rows, without the time to load them, and its
metrics are compared with ours. The 95 % intervals of `--bootstrap` resamples are timed apart.
"""

import argparse
import contextlib
import io
import statistics
import time

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from object_detection.coco.bootstrap import intervals
from object_detection.coco.evaluation import CocoEvaluator, ground_truth_from_dataset
from object_detection.coco.measures import MEASURE_NAMES
from object_detection.coco.results import DetectionRows, results_json

OBJECTS, DETECTIONS, CLASSES, SIDE = 7, 100, 80, 640


def random_dataset(images: int) -> tuple[dict, DetectionRows]:
    """Return annotations as a COCO dictionary, and detections near the objects, half of them with the right class."""
    random, ids = np.random.default_rng(0), np.arange(1, images + 1)
    sizes = random.uniform(8, 300, (images, OBJECTS, 2))
    corners = random.uniform(0, 1, (images, OBJECTS, 2)) * (SIDE - sizes)
    classes = random.integers(1, CLASSES + 1, (images, OBJECTS))
    annotations = [
        {
            "id": number + 1,
            "image_id": number // OBJECTS + 1,
            "category_id": category_id,
            "iscrowd": 0,
            "bbox": [x, y, width, height],
            "area": width * height,
        }
        for number, ((y, x), (height, width), category_id) in enumerate(
            zip(corners.reshape(-1, 2).tolist(), sizes.reshape(-1, 2).tolist(), classes.ravel().tolist(), strict=True)
        )
    ]
    dataset = {
        "images": [{"id": i, "height": SIDE, "width": SIDE} for i in ids.tolist()],
        "annotations": annotations,
        "categories": [{"id": k, "name": f"class {k}"} for k in range(1, CLASSES + 1)],
    }
    shape = images, DETECTIONS
    detected = np.arange(images)[:, None], random.integers(0, OBJECTS, shape)
    low = corners[detected] + random.normal(0, 12, (*shape, 2))
    boxes = np.concatenate([low, low + sizes[detected] * random.uniform(0.7, 1.4, (*shape, 2))], axis=-1)
    category_ids = np.where(random.uniform(size=shape) < 0.5, classes[detected], random.integers(1, CLASSES + 1, shape))
    return dataset, DetectionRows(
        image_ids=np.repeat(ids, DETECTIONS),
        boxes=boxes.reshape(-1, 4).astype(np.float32).round(2),  # as pycocotools gets them from results
        scores=random.uniform(0.001, 1, images * DETECTIONS).astype(np.float32).round(5),
        category_ids=category_ids.ravel(),
        evaluated_ids=ids,
    )


def by_pycocotools(dataset: dict, rows: DetectionRows) -> tuple[list[float], float]:
    """Return the 12 metrics of pycocotools, computed as in its documentation, and the time in seconds."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results_json(rows)), "bbox")
        start = time.perf_counter()
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist(), time.perf_counter() - start


def main() -> None:
    """Print the times and the largest difference between the metrics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bootstrap", type=int, default=0)
    arguments = parser.parse_args()
    dataset, rows = random_dataset(arguments.images)
    evaluator = CocoEvaluator(ground_truth_from_dataset(dataset, source="drawn"))
    seconds: dict[str, list[float]] = {"ours": [], "pycocotools": []}
    for _ in range(arguments.runs):
        start = time.perf_counter()
        ours = evaluator.evaluate(rows).numbers
        seconds["ours"].append(time.perf_counter() - start)
        metrics, spent = by_pycocotools(dataset, rows)
        seconds["pycocotools"].append(spent)
    difference = max(abs(ours[name] - value) for name, value in zip(MEASURE_NAMES, metrics, strict=True))
    print(
        f"{arguments.images} images, {len(rows.scores)} detections: AP {ours['AP']:.4f}; "
        f"largest difference to pycocotools {difference:.1e}"
    )
    if arguments.bootstrap:
        comparison = evaluator.compare(rows)
        _ = comparison.matching  # computed once, and timed above
        start, cpu_start = time.perf_counter(), time.process_time()
        low, high = intervals(comparison, arguments.bootstrap)["numbers"]["AP"]
        print(
            f"intervals of {arguments.bootstrap} resamples: {time.process_time() - cpu_start:.1f} CPU seconds, "
            f"{time.perf_counter() - start:.1f} s; AP {low:.4f} to {high:.4f}"
        )
    for name, values in seconds.items():
        print(f"{name:<12} median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
