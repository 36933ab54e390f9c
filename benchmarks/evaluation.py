"""Measure the time from detections in memory to the 12 COCO metrics: `python benchmarks/evaluation.py [--images=5000]`.

Ground truth and detections are synthetic: 7 objects and 100 detections per image; a matching detection is a few pixels
off. pycocotools, the reference implementation, and hotcoco if it is installed are timed on the same rows, without the
time to load them, and their metrics are compared with ours. The 95 % intervals of `--bootstrap` resamples are timed
apart.
"""

import argparse
import contextlib
import importlib.util
import io
import resource
import statistics
import time

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from object_detection.coco.bootstrap import intervals
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import ground_truth_from_dataset
from object_detection.coco.measures import MEASURE_NAMES
from object_detection.coco.results import DetectionRows, results_json

OBJECTS, DETECTIONS, CLASSES, SIDE = 7, 100, 80, 640


def random_dataset(images: int, *, seed: int = 0) -> tuple[dict, DetectionRows]:
    """Return annotations as a COCO dictionary, and detections; the first few of an image match objects."""
    random = np.random.default_rng(seed)
    sizes = random.uniform(8, 300, (images, OBJECTS, 2))
    corners = random.uniform(0, 1, (images, OBJECTS, 2)) * (SIDE - sizes)
    classes = random.integers(1, CLASSES + 1, (images, OBJECTS))
    annotations = [
        {
            "id": image * OBJECTS + i + 1,
            "image_id": image + 1,
            "category_id": int(classes[image, i]),
            "iscrowd": 0,
            "bbox": [*corners[image, i, ::-1].tolist(), *sizes[image, i, ::-1].tolist()],
            "area": float(sizes[image, i].prod()),
        }
        for image in range(images)
        for i in range(OBJECTS)
    ]
    dataset = {
        "images": [{"id": i + 1, "height": SIDE, "width": SIDE} for i in range(images)],
        "annotations": annotations,
        "categories": [{"id": k, "name": f"class {k}"} for k in range(1, CLASSES + 1)],
    }
    detected = random.integers(0, OBJECTS, (images, DETECTIONS))
    rows = np.arange(images)[:, None]
    low = corners[rows, detected] + random.normal(0, 12, (images, DETECTIONS, 2))
    boxes = np.concatenate(
        [low, low + sizes[rows, detected] * random.uniform(0.7, 1.4, (images, DETECTIONS, 2))], axis=-1
    )
    right = random.uniform(size=(images, DETECTIONS)) < 0.5
    category_ids = np.where(right, classes[rows, detected], random.integers(1, CLASSES + 1, (images, DETECTIONS)))
    ids = np.arange(1, images + 1)
    return dataset, DetectionRows(
        image_ids=np.repeat(ids, DETECTIONS),
        boxes=boxes.reshape(-1, 4).astype(np.float32),
        scores=random.uniform(0.001, 1, images * DETECTIONS).astype(np.float32),
        category_ids=category_ids.ravel(),
        evaluated_ids=ids,
    )


def by_pycocotools(dataset: dict, rows: DetectionRows) -> tuple[list[float], float]:
    """Return the 12 metrics of pycocotools, computed as in its documentation, and the time in seconds."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = dataset
        truth.createIndex()
        return _evaluated(COCOeval(truth, truth.loadRes(results_json(rows)), "bbox"))


def by_hotcoco(dataset: dict, rows: DetectionRows) -> tuple[list[float], float]:
    """Return the metrics and time of hotcoco, which is compiled from Rust."""
    import hotcoco

    with contextlib.redirect_stdout(io.StringIO()):
        truth = hotcoco.COCO(dataset)
        return _evaluated(hotcoco.COCOeval(truth, truth.load_res(results_json(rows)), "bbox"))


def _evaluated(evaluation) -> tuple[list[float], float]:
    start = time.perf_counter()
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return [float(number) for number in evaluation.stats], time.perf_counter() - start


def _time_intervals(evaluator: CocoEvaluator, rows: DetectionRows, *, resamples: int) -> None:
    comparison = evaluator.compare(rows)
    _ = comparison.matching  # computed once, and timed above
    start, cpu_start, before = time.perf_counter(), time.process_time(), _peak_megabytes()
    low, high = intervals(comparison, resamples)["numbers"]["AP"]
    print(
        f"intervals of {resamples} resamples: {time.process_time() - cpu_start:.1f} CPU seconds, "
        f"{time.perf_counter() - start:.1f} s; peak memory {_peak_megabytes():.0f} MB, {before:.0f} MB before; "
        f"AP {low:.4f} to {high:.4f}"
    )


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the times and the largest difference between the metrics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bootstrap", type=int, default=0)
    arguments = parser.parse_args()
    dataset, rows = random_dataset(arguments.images)
    # as pycocotools gets them from results
    rows = rows._replace(boxes=rows.boxes.round(2), scores=rows.scores.round(5))
    evaluator = CocoEvaluator(ground_truth_from_dataset(dataset, source="drawn"))
    peers = {"pycocotools": by_pycocotools, "hotcoco": by_hotcoco}
    peers = {name: peer for name, peer in peers.items() if importlib.util.find_spec(name)}
    seconds, differences = {"ours": []} | {name: [] for name in peers}, {}
    for _ in range(arguments.runs):
        start = time.perf_counter()
        ours = evaluator.evaluate(rows)
        seconds["ours"].append(time.perf_counter() - start)
        for name, peer in peers.items():
            peer_metrics, spent = peer(dataset, rows)
            seconds[name].append(spent)
            differences[name] = max(
                abs(ours.numbers[key] - value) for key, value in zip(MEASURE_NAMES, peer_metrics, strict=True)
            )
    print(
        f"{arguments.images} images, {len(rows.scores)} detections: AP {ours.numbers['AP']:.4f}; "
        + "; ".join(f"largest difference to {name} {difference:.1e}" for name, difference in differences.items())
    )
    if arguments.bootstrap:
        _time_intervals(evaluator, rows, resamples=arguments.bootstrap)
    for name, values in seconds.items():
        print(f"{name:<12} median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f}")


if __name__ == "__main__":
    main()
