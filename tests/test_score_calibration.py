"""Calibrated scores beside known true precisions, a general optimizer, and the detections that they must not change."""

import json

import numpy as np
import pytest
from coco_cases import BOX, CATEGORIES, OTHER, detections, ground_truth
from scipy.optimize import minimize

from dataset.class_names import ClassNames
from efficientdet.checkpoints.description import SCORE_CALIBRATION, Description, description_of
from efficientdet.inference.detect import Detector
from efficientdet.prediction.open_model import with_thresholds
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.results import DetectionRows
from object_detection.coco.score_calibration import ScoreMap, calibrate_scores, calibrated_scores, fitted_map
from program_support.errors import InputError

CAT, DOG, BIRD = 3, 7, 9
GRID = np.linspace(0.05, 0.95, 19)
TRUE_PRECISION = {CAT: lambda score: score**2, DOG: lambda score: score}


def drawn_detections(images, seed=0):
    """An image has an object of each class and one detection of it, right with the true precision of its score."""
    random, found = np.random.default_rng(seed), []
    for image in range(images):
        for category, precision in TRUE_PRECISION.items():
            score = random.random()
            found.append((image, category, BOX if random.random() < precision(score) else OTHER, score))
    objects = [(image, category, BOX) for image in range(images) for category in TRUE_PRECISION]
    objects += [(image, BIRD, BOX) for image in range(9)]
    categories = [*CATEGORIES, {"id": BIRD, "name": "bird"}]
    evaluator = CocoEvaluator(ground_truth(objects, images=range(images), categories=categories))
    return evaluator, detections(found, images=range(images))


def test_the_true_precision_of_the_scores_is_found():
    evaluator, found = drawn_detections(4000)
    calibration = calibrate_scores(evaluator.compare(found))
    cat = calibration.classes["cat"]
    assert cat.map(GRID) == pytest.approx(GRID**2, abs=0.03)
    assert cat.error_before == pytest.approx(1 / 6, abs=0.02)  # the mean of s - s ** 2
    assert cat.error_after < 0.03
    assert (dog := calibration.classes["dog"]).error_before < 0.03  # its scores are the true precision
    assert dog.map is None or dog.map(GRID) == pytest.approx(GRID, abs=0.03)
    assert dog.reason == ("" if dog.map else "not better on held-out images")
    assert calibration.classes["bird"].reason == "fewer than 10 objects"
    assert calibration.after.expected_error < calibration.before.expected_error / 3
    assert calibration.to_store()["cat"] == list(cat.map)
    assert json.loads(json.dumps(calibration.to_json()))["classes"]["cat"]["map"]["a"] == cat.map.a
    lines = calibration.table().splitlines()
    assert f"{cat.error_before:.4f}  {cat.error_after:.4f}     4000" in lines[2]
    assert lines[4].endswith("9  fewer than 10 objects")


def test_scores_that_are_the_true_precision_mostly_stay():
    kept = 0
    for seed in range(40):
        evaluator, found = drawn_detections(200, seed=seed)
        kept += calibrate_scores(evaluator.compare(found), seed=seed).classes["dog"].map is not None
    assert 0 < kept < 16  # 21 if only the expected calibration error decided


def test_ap_and_the_order_within_a_class_stay_the_same():
    evaluator, found = drawn_detections(300)
    maps = {CAT: ScoreMap(2.5, 0.0, 1.0), DOG: ScoreMap(0.0, 0.4, -1.0)}
    calibrated = found._replace(scores=calibrated_scores(found.scores, found.category_ids, maps))
    assert calibrated.scores.dtype == np.float32
    before, after = evaluator.evaluate(found), evaluator.evaluate(calibrated)
    assert after.numbers == pytest.approx(before.numbers, abs=1e-6)
    for category in TRUE_PRECISION:
        of_class = found.category_ids == category
        assert (np.argsort(found.scores[of_class]) == np.argsort(calibrated.scores[of_class])).all()


@pytest.mark.parametrize("precision", [lambda s: s**3, lambda s: 1 - s, lambda s: 0, lambda s: 1, lambda s: 0.3])
@pytest.mark.parametrize("count", [0, 1, 40, 2000])
def test_maps_beside_a_general_optimizer(precision, count):
    random = np.random.default_rng(count)
    scores = random.random(count)
    right = random.random(count) < precision(scores)
    features = np.stack([np.log(scores), -np.log(1 - scores), np.ones(count)])

    def loss(values):
        logits = values @ features
        return np.logaddexp(0, np.where(right, -logits, logits)).sum() + ((values - (1, 1, 0)) ** 2).sum() / 2

    best = minimize(loss, (1, 1, 0), bounds=[(0, None), (0, None), (None, None)], method="L-BFGS-B", tol=1e-12)
    score_map = fitted_map(scores, right)
    assert score_map == pytest.approx(tuple(best.x), abs=2e-3)
    assert loss(np.array(score_map)) <= best.fun + 1e-6


def described(**maps):
    f1 = {"overall": 0.5, "classes": {"dog": 0.4}}
    return Description(
        model_name="m",
        hparams={},
        categories=ClassNames.from_categories(CATEGORIES).to_categories(),
        weights="raw",
        score_thresholds={**f1, SCORE_CALIBRATION: maps},
    )


def detector_of(scores, description):
    """A detector whose detections, cats and dogs in turn, have these scores in every image."""
    found = DetectionRows.of_image(
        np.tile(np.array([[0, 0, 10, 10]], np.float32), (len(scores), 1)),
        np.array(scores, np.float32),
        np.resize([CAT, DOG], len(scores)),
    )
    return Detector.described(lambda images: [found for _ in images], description)


def test_a_detector_returns_probabilities_of_the_same_detections():
    description = description_of(json.loads(json.dumps(vars(described(cat=[2.0, 1.0, -0.5])))))
    scores = np.arange(100, 0, -1) / 101
    plain = detector_of(scores, description)
    image = np.zeros((8, 8, 3), np.uint8)
    calibrated = plain.with_calibrated_scores()
    [before], [after] = plain.predict(image), calibrated.predict(image)
    assert sorted(before.category_ids) == sorted(after.category_ids)  # the same detections are above the thresholds
    assert (np.diff(after.scores) <= 0).all()
    is_cat = before.category_ids == CAT
    expected = 1 / (1 + np.exp(0.5) * (1 - before.scores) / before.scores**2)
    assert after.scores[after.category_ids == CAT] == pytest.approx(expected[is_cat], abs=1e-6)
    assert (after.scores[after.category_ids == DOG] == before.scores[~is_cat]).all()  # dogs have no map
    threshold = ScoreMap(2.0, 1.0, -0.5)(0.5)
    assert calibrated.thresholds.by_category == pytest.approx({CAT: threshold, DOG: 0.4})
    assert calibrated.thresholds.overall == pytest.approx(min(threshold, 0.5))
    assert str(calibrated.thresholds).endswith("stored with the model, of calibrated scores")
    [few] = calibrated.predict(image, min_score=0.9)
    assert few.scores.min() >= 0.9


def test_options_of_a_program_are_applied_in_order(capsys):
    detector = detector_of([0.9, 0.6, 0.3], described(cat=[2.0, 1.0, -0.5]))
    chosen = with_thresholds(detector, min_score=0.7, calibrated_scores=True)
    assert chosen.thresholds.overall == 0.7  # of calibrated scores
    assert chosen.detect([None])[0].scores[0] == pytest.approx(float(ScoreMap(2.0, 1.0, -0.5)(np.float32(0.9))))
    assert "score threshold: 0.7, --min_score_thresh" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"^--calibrated_scores: the model stores no score calibration; eval.py"):
        with_thresholds(detector_of([0.9], described()), min_score=None, calibrated_scores=True)


@pytest.mark.parametrize(
    "maps",
    [
        [],
        {"cat": [1.0, 1.0]},
        {"cat": [-0.1, 1.0, 0.0]},
        {"cat": [0.0, 0.0, 0.0]},
        {"cat": [1.0, 1.0, np.inf]},
        {"cat": [1.0, 1.0, "c"]},
        {"cat": 0.5},
    ],
)
def test_a_damaged_calibration_is_refused(maps):
    content = {**vars(described()), "score_thresholds": {"overall": 0.5, "classes": {}}}
    content["score_thresholds"][SCORE_CALIBRATION] = maps
    with pytest.raises(TypeError, match=r"^score_calibration is .*; expected three finite numbers for each class"):
        description_of(content)
