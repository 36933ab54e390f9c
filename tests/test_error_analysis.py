"""Curves, thresholds, confusion and reliability beside pycocotools, plain loops and answers worked by hand."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from coco_cases import BOX, OTHER, by_pycocotools, detections, ground_truth, read_ground_truth, rows_of

from object_detection.coco.error_analysis import SHOWN_IOU, SIZES, ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.score_calibration import best_threshold, reliability, thresholds_to_store

CAT, DOG = 3, 7
THIRD = (400, 300, 50, 50)


def analysis_of(truth, rows):
    return ErrorAnalysis(comparison=CocoEvaluator(truth).compare(rows))


def test_curves_and_ap_by_size_are_pycocotools(data_folder):
    folder = data_folder / "cocoeval" / "val2014_fake100"
    truth = read_ground_truth(folder / "instances_val2014_100.json")
    results = json.loads((folder / "instances_val2014_fakebbox100_results.json").read_text())
    for result in results:  # as float32 holds them
        result.update(bbox=np.round(np.array(result["bbox"]) * 4).clip(1) / 4, score=float(np.float32(result["score"])))
        result["bbox"] = result["bbox"].tolist()
    analysis = analysis_of(truth, rows_of(results, truth=truth))
    wanted = by_pycocotools(truth, results, image_ids=list(truth.image_sizes)).eval["precision"][..., 2]
    wanted = np.where(wanted < 0, np.nan, wanted)  # [T, R, K, A]
    for name, place in {"IoU 0.50": 0, "IoU 0.75": 5}.items():
        np.testing.assert_array_equal(analysis.precision(SHOWN_IOU[name]), wanted[place, :, :, 0])
        np.testing.assert_allclose(analysis.class_ap[name], wanted[place, :, :, 0].mean(axis=0), atol=1e-12)
    for number, size in enumerate(SIZES):
        np.testing.assert_allclose(analysis.class_ap[size], wanted[..., number].mean(axis=(0, 1)), atol=1e-12)
    document = json.loads(json.dumps(analysis.to_json(), allow_nan=False))
    mean = document["precision_recall"]["IoU 0.50"]["mean"]
    np.testing.assert_allclose(mean, np.nanmean(wanted[0, :, :, 0], axis=1), atol=1e-6)
    assert set(document["ap_by_class"]["small"]) == set(truth.categories.values())


@pytest.mark.parametrize("seed", range(5))
def test_best_threshold_by_trying_all(seed):
    random = np.random.default_rng(seed)
    scores, right, wanted = random.integers(0, 12, 40) / 16, random.random(40) < 0.4, 25

    def f1(threshold):
        kept = scores >= threshold
        hits = (kept & right).sum()
        precision, recall = hits / max(kept.sum(), 1), hits / wanted
        return 2 * precision * recall / (precision + recall) if hits else 0.0

    found = best_threshold(scores, right, wanted)
    assert found.f1 == pytest.approx(max(map(f1, np.linspace(0, 1, 161))))
    assert f1(found.score) == pytest.approx(found.f1)
    assert found.score == max(score for score in scores if f1(score) >= found.f1 - 1e-12)
    kept = scores >= found.score
    assert (found.precision, found.recall) == pytest.approx((right[kept].mean(), right[kept].sum() / wanted))


def test_thresholds_to_store():
    """The class of 12 objects has its own threshold, the one of 2 and the one that is never found have that of all."""
    scores = np.array([0.95] * 12 + [0.123456] * 2 + [0.1] * 30 + [0.5] * 20)
    classes = np.array([0] * 12 + [1] * 2 + [0] * 30 + [2] * 20)
    right = np.array([True] * 14 + [False] * 50)
    comparison = SimpleNamespace(
        names=("many", "few", "never"),
        scores=scores,
        class_counts=np.array([12, 2, 20]),
        detections=SimpleNamespace(classes=classes),
        matching=SimpleNamespace(by_class=np.argsort(classes, kind="stable")),
        outcomes=SimpleNamespace(counted=np.ones(64, bool), right=right),
    )
    assert thresholds_to_store(comparison) == {"overall": 0.95, "classes": {"many": 0.95}}
    comparison.class_counts = np.array([12, 10, 20])
    assert thresholds_to_store(comparison)["classes"] == {"many": 0.95, "few": 0.1234}  # rounded down
    comparison.class_counts = np.array([3, 2, 4])
    assert thresholds_to_store(comparison) == {}  # too few objects
    comparison.class_counts = np.array([12, 10, 20])
    comparison.outcomes.right = np.zeros(64, bool)
    assert thresholds_to_store(comparison) == {}


def test_no_threshold_where_nothing_is_right():
    for scores, right, wanted in (([], [], 3), ([0.5], [False], 3), ([0.5], [False], 0)):
        found = best_threshold(np.array(scores), np.array(right, bool), wanted)
        assert math.isnan(found.score)
        assert found[1:] == (0.0, 0.0, 0.0)


def test_reliability_by_a_loop():
    random = np.random.default_rng(0)
    scores = np.append(random.random(200) ** 2, [0.0, 1.0, 0.5]).astype(np.float32)
    right = random.random(203) < scores
    bins = [
        [i for i, score in enumerate(scores) if low / 10 <= score < (low + 1) / 10 or (low == 9 and score == 1)]
        for low in range(10)
    ]
    found = reliability(scores, right)
    assert found.counts.tolist() == list(map(len, bins))
    np.testing.assert_allclose(found.scores, [np.mean([scores[i] for i in here]) for here in bins], rtol=1e-6)
    np.testing.assert_allclose(found.precision, [np.mean([right[i] for i in here]) for here in bins], rtol=1e-6)
    wanted = sum(len(here) / 203 * abs(np.mean(scores[here]) - np.mean(right[here])) for here in bins)
    assert found.expected_error == pytest.approx(wanted, rel=1e-5)
    assert reliability(np.zeros(0), np.zeros(0, bool)).expected_error == 0.0


# The best threshold of cats is 0.7, of dogs 0.6: below is noise. Image 0: a cat is found twice, a dog is taken for a
# cat. Image 1: a dog is found, and taken for a cat by a better detection, a cat is missed, a dog is seen where nothing
# is.
OBJECTS = [(0, CAT, BOX), (0, DOG, OTHER), (1, DOG, BOX), (1, CAT, OTHER), (2, CAT, BOX), (2, DOG, OTHER)]
FOUND = [
    (0, CAT, BOX, 0.9),
    (0, CAT, BOX, 0.8),
    (0, CAT, OTHER, 0.75),
    (1, CAT, BOX, 0.95),
    (1, DOG, BOX, 0.65),
    (1, DOG, THIRD, 0.7),
    (2, CAT, BOX, 0.7),
    (2, DOG, OTHER, 0.6),
    (2, CAT, THIRD, 0.2),
    (2, DOG, THIRD, 0.3),
]


def test_confusion_by_hand():
    analysis = analysis_of(ground_truth(OBJECTS, images=(0, 1, 2)), detections(FOUND, images=(0, 1, 2)))
    assert [best.score for best in analysis.thresholds] == pytest.approx([0.7, 0.6])
    assert analysis.above_threshold.tolist() == [True] * 8 + [False] * 2
    # Of cats two are found and one missed, of dogs two found and one taken for a cat. Other boxes are on what is found
    # already.
    assert analysis.confusion.tolist() == [[2, 0, 1], [1, 2, 0], [2, 1, 0]]


def test_crowds_are_not_in_the_confusion():
    truth = ground_truth([(0, CAT, BOX), (0, CAT, OTHER, 1), (1, DOG, BOX)])
    found = [(0, CAT, BOX, 0.8), (0, CAT, OTHER, 0.9), (0, CAT, OTHER, 0.9), (1, DOG, BOX, 0.9)]
    analysis = analysis_of(truth, detections(found))
    assert analysis.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert analysis.reliability.counts.sum() == 2


def test_errors_of_images():
    """Image 1: a cat missed, two wrong. Image 0: a dog missed, two wrong. Image 2: none above the thresholds."""
    analysis = analysis_of(ground_truth(OBJECTS, images=(0, 1, 2)), detections(FOUND, images=(0, 1, 2)))
    assert analysis.mistakes.tolist() == [3, 3, 0]
    errors = [(image.image_id, *(rows.tolist() for rows in image[1:])) for image in analysis.errors_of(np.arange(3))]
    assert errors[:2] == [(0, [1], [1, 2], [0], [0]), (1, [3], [3, 5], [2], [4])]  # missed, wrong, found, right


def test_nothing_is_known():
    for truth, rows in (
        (ground_truth(OBJECTS, images=(0, 1, 2)), detections([], images=(0, 1, 2))),
        (ground_truth([]), detections([(0, CAT, BOX, 0.5)])),
        (ground_truth([]), detections([], images=[])),
    ):
        analysis = analysis_of(truth, rows)
        json.dumps(analysis.to_json(), allow_nan=False)
        assert analysis.confusion.sum() == analysis.comparison.class_counts.sum()
        assert len(analysis.mistakes) == len(analysis.comparison.image_ids)
