"""Resampled COCO metrics and their intervals, compared with evaluations of the resampled sets and with known truth."""

import numpy as np
import pytest

from object_detection.coco.bootstrap import interval, multiplicities, resampled
from object_detection.coco.evaluation import CocoEvaluator, ground_truth_from_dataset
from object_detection.coco.matching import Comparison, Instances, ObjectFlags, box_overlap
from object_detection.coco.measures import MEASURE_NAMES
from object_detection.coco.results import DetectionRows

IMAGES = 12


@pytest.fixture(scope="module")
def drawn():
    """Annotations with crowds and of all sizes, a rare class, and detections [image, y, x, y, x, score, class]."""
    random = np.random.default_rng(3)
    annotations, found = [], []
    for image in range(IMAGES):
        for _ in range(random.integers(0, 8)):
            x, y, width, height = (*random.uniform(0, 300, 2), *random.uniform(10, 150, 2))
            category = int(random.choice([1, 2, 3], p=[0.6, 0.35, 0.05]))
            annotations.append((image, category, (x, y, width, height), int(random.uniform() < 0.1)))
            for _ in range(random.integers(0, 4)):
                box = np.array([y, x, y + height, x + width]) + random.normal(0, 6, 4)
                found.append([image, *box, random.uniform(), category if random.uniform() < 0.8 else 1])
        for _ in range(3):
            y, x = random.uniform(0, 300, 2)
            found.append([image, y, x, y + 30, x + 40, random.uniform(), random.integers(1, 4)])
    return annotations, np.array(found)


def compared(drawn, counts):
    """The evaluator and the rows of the set that has each image as often as `counts` says, copies side by side."""
    annotations, found = drawn
    copies = np.repeat(np.arange(IMAGES), counts)
    dataset = {
        "images": [{"id": number, "height": 500, "width": 500} for number in range(len(copies))],
        "categories": [{"id": k, "name": f"class {k}"} for k in (1, 2, 3)],
        "annotations": [
            {"image_id": number, "category_id": k, "bbox": [*box], "area": box[2] * box[3], "iscrowd": crowd}
            for number, image in enumerate(copies.tolist())
            for at, k, box, crowd in annotations
            if at == image
        ],
    }
    here = [(number, row) for number, image in enumerate(copies) for row in found[found[:, 0] == image]]
    ids, rows = np.array([number for number, _ in here]), np.array([row for _, row in here])
    return CocoEvaluator(ground_truth_from_dataset(dataset, source="drawn")), DetectionRows(
        ids, rows[:, 1:5], rows[:, 5], rows[:, 6].astype(np.int64), np.arange(len(copies))
    )


def test_metrics_equal_those_of_the_resampled_set(drawn):
    evaluator, rows = compared(drawn, np.ones(IMAGES, int))
    weights = multiplicities(IMAGES, 25, seed=1)
    assert (weights.sum(axis=1) == IMAGES).all()
    samples = resampled(evaluator.compare(rows), weights)
    absent = 0
    for number, counts in enumerate(weights):
        evaluator, rows = compared(drawn, counts)
        measures = evaluator.evaluate(rows)
        expected = np.array([measures.numbers[name] for name in MEASURE_NAMES])
        class_ap = np.array([*measures.class_ap.values()])
        np.testing.assert_allclose(np.nan_to_num(samples.numbers[:, number], nan=-1), expected, atol=1e-12)
        np.testing.assert_allclose(np.nan_to_num(samples.by_class[:, 0, number], nan=-1), class_ap, atol=1e-12)
        absent += (class_ap < 0).sum()
    assert absent  # the rare class is not in every resample


def test_evaluation_has_intervals_of_what_it_measures(drawn):
    evaluator, rows = compared(drawn, np.ones(IMAGES, int))
    measures = evaluator.evaluate(rows, resamples=200)
    assert evaluator.evaluate(rows).intervals == {}
    assert measures.intervals == evaluator.evaluate(rows, resamples=200).intervals
    assert measures.to_json()["intervals"] == measures.intervals
    for field in ("numbers", "class_ap"):
        for name, (low, high) in measures.intervals[field].items():
            assert 0 <= low <= getattr(measures, field)[name] <= high <= 1
    low, high = measures.intervals["numbers"]["AP"]
    assert f"  {low:.4f} to {high:.4f}  precision, IoU 0.50 to 0.95" in measures.table()


def test_nothing_to_measure_has_no_interval(drawn):
    evaluator, rows = compared(([], drawn[1]), np.ones(IMAGES, int))
    assert evaluator.evaluate(rows, resamples=20).intervals == {"numbers": {}, "class_ap": {}}
    evaluator, rows = compared(drawn, np.eye(IMAGES, dtype=int)[0])
    assert evaluator.evaluate(rows, resamples=20).intervals == {}  # a single image has no spread


SETS, SET_IMAGES = 200, 30


def simulated(random, skills):
    """Comparisons, one per skill of a detector, on data sets of SET_IMAGES images. Each set is a class of its own.

    All objects are large. Images differ in difficulty. IoUs, scores and errors are drawn.
    """
    images = SETS * SET_IMAGES
    difficulty = random.normal(0, 0.7, images)
    object_images = np.repeat(np.arange(images), random.poisson(2, images))
    count = len(object_images)
    sides, nothing = random.uniform(100, 150, count), np.zeros(count, bool)
    boxes = np.stack([200.0 * np.arange(count), np.zeros(count), sides, sides], axis=-1)
    for skill in skills:
        logits = random.normal(skill, 1.2, count) - difficulty[object_images]
        found = np.flatnonzero(random.uniform(size=count) < 1 / (1 + np.exp(-logits - 1.5)))
        narrowed = boxes[found]
        narrowed[:, 2] *= np.clip(1 - random.gamma(2, 0.08, len(found)), 0.05, 1)  # the IoU
        wrong_images = np.repeat(np.arange(images), random.poisson(2, images))
        wrong = np.tile([-999.0, -999.0, 50.0, 50.0], (len(wrong_images), 1))
        wrong_logits = random.normal(-1.5, 1.2, len(wrong_images)) - 0.5 * difficulty[wrong_images]
        detected, detected_images = np.concatenate([narrowed, wrong]), np.append(object_images[found], wrong_images)
        yield Comparison(
            image_ids=np.arange(images),
            names=tuple(map(str, range(SETS))),
            detected=np.arange(len(detected)),
            scores=np.append(logits[found], wrong_logits),
            detections=Instances(detected_images, detected_images // SET_IMAGES, detected[:, 2] * detected[:, 3]),
            objects=Instances(object_images, object_images // SET_IMAGES, sides**2),
            object_boxes=boxes,
            flags=ObjectFlags(nothing, nothing),
            overlap=box_overlap(detected, boxes, nothing),
        )


def test_intervals_contain_the_true_value_in_95_of_100_data_sets():
    """True is the mean of the values in independent data sets of the same size."""
    random, skills = np.random.default_rng(0), (0.5, 1.0)
    once = np.ones((1, SETS * SET_IMAGES), np.int32)
    others = [[resampled(one, once).by_class[..., 0] for one in simulated(random, skills)] for _ in range(2)]
    truth = np.mean(others, axis=(0, 2))  # [2, 12]
    weights = np.tile(multiplicities(SET_IMAGES, 160), (1, SETS))
    worse, better = (resampled(one, weights).by_class for one in simulated(random, skills))
    for samples, true in ((worse, truth[0]), (better - worse, truth[1] - truth[0])):
        ends = np.array(
            [[interval(values, images=SET_IMAGES) for values in of_set] for of_set in samples]
        )  # [K, 12, 2]
        inside = ((ends[..., 0] <= true) & (true <= ends[..., 1])).mean(axis=0)
        assert 0.92 <= inside[MEASURE_NAMES.index("AP")] <= 0.98
