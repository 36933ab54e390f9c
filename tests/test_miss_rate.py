"""Thresholds with a guaranteed miss rate beside Clopper and Pearson's bound, Monte Carlo and known true miss rates."""

import json
import math

import numpy as np
import pytest
from coco_cases import BOX, OTHER, detections, ground_truth

from dataset.class_names import ClassNames
from efficientdet.checkpoints.description import Description, description_of
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds, with_default_thresholds
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import ground_truth_from_dataset
from object_detection.coco.score_thresholds import miss_rate_thresholds
from program_support.errors import InputError

CAT, DOG = 3, 7
SIDE = 20  # pixels of an object; those of an image stand in a row


def comparison_of(scores):
    """`scores`: for each image the score with which each of its cats is found; NaN: it is not."""
    places = [
        (image, (30 * i, 0, SIDE, SIDE), score) for image, row in enumerate(scores) for i, score in enumerate(row)
    ]
    truth = ground_truth([(image, CAT, box) for image, box, _ in places], images=range(len(scores)))
    found = [(image, CAT, box, score) for image, box, score in places if not math.isnan(score)]
    return CocoEvaluator(truth).compare(detections(found, images=range(len(scores)), dtype=np.float64))


def cats(scores, **guarantee):
    return miss_rate_thresholds(comparison_of(scores), **{"miss_rate": 0.05, "confidence": 0.9, **guarantee}).classes[
        "cat"
    ]


@pytest.mark.parametrize(
    ("images", "miss_rate", "confidence"), [(45, 0.05, 0.9), (59, 0.05, 0.95), (230, 0.01, 0.9), (4, 0.5, 0.9)]
)
def test_images_without_a_miss_that_are_enough(images, miss_rate, confidence):
    assert images == math.ceil(math.log(1 - confidence) / math.log(1 - miss_rate))
    guarantee = {"miss_rate": miss_rate, "confidence": confidence}
    assert cats([[0.75]] * images, **guarantee).score == 0.75
    fewer = cats([[0.75]] * (images - 1), **guarantee)
    assert (fewer.score, fewer.shortfall) == (None, "too few images")


@pytest.mark.parametrize("images", [45, 100, 333, 1000])
def test_one_object_per_image_is_clopper_and_pearson(images):
    scores = np.random.default_rng(images).permutation(np.arange(1, images + 1) / images / 1.0001)
    terms = [math.comb(images, k) * 0.05**k * 0.95 ** (images - k) for k in range(images)]
    allowed = sum(np.cumsum(terms) <= 0.1) - 1  # missed objects
    found = cats(scores[:, None])
    assert found.miss_rate == allowed / images
    assert found.score == pytest.approx(np.sort(scores)[allowed], abs=1e-4)


def test_images_with_several_objects_by_drawing_the_weights():
    random = np.random.default_rng(3)
    scores = [random.uniform(0.2 * random.random(), 1, random.integers(1, 9)) for _ in range(150)]
    found = cats(scores)
    sizes = np.array([len(row) for row in scores])
    weights = random.dirichlet(np.ones(151), 20000)

    def exceeds(threshold):
        missed = np.array([(np.floor(row * 1e4) / 1e4 < threshold).sum() for row in scores])
        excess = np.append(missed - 0.05 * sizes, 0.95 * sizes.max())
        return (weights @ excess > 0).mean()

    assert exceeds(found.score) <= 0.1 + 0.006
    candidates = np.sort(np.floor(np.concatenate(scores) * 1e4) / 1e4)
    assert exceeds(candidates[candidates > found.score + 1e-9][0]) > 0.1 - 0.006
    assert found.miss_rate == pytest.approx((np.concatenate(scores) < found.score).mean())


def test_the_true_miss_rate_is_exceeded_as_rarely_as_stated():
    """All objects of an image are found with one score, lower where there are two, so that they are missed together."""
    random, exceeded, sets = np.random.default_rng(0), 0, 100
    for _ in range(sets):
        hard = random.random(100) < 0.3
        found = cats([[random.uniform(0, 0.6)] * 2 if one else [random.random()] for one in hard], miss_rate=0.1)
        if found.score is not None:
            share = 0.3 * 2 / (0.3 * 2 + 0.7)  # of all objects in hard images
            exceeded += share * found.score / 0.6 + (1 - share) * found.score > 0.1
    assert 0 < exceeded <= sets * 0.1


def test_the_detector_itself_misses_too_many():
    found = cats([[0.5, math.nan], [0.5]] * 50)
    assert found.score is None
    assert found.shortfall == "the detector misses 33.3% at any score"


def test_false_positives_crowds_and_difficult_objects():
    images = range(60)
    objects = [(i, CAT, BOX) for i in images] + [(i, DOG, OTHER, 1) for i in images]
    truth = ground_truth(objects, images=images)
    difficult = [{**one, "difficult": one["category_id"] == CAT and one["image_id"] < 10} for one in truth.annotations]
    sizes = [{"id": i, "height": 400, "width": 500} for i in images]
    categories = [{"id": CAT, "name": "cat"}, {"id": DOG, "name": "dog"}]
    truth = ground_truth_from_dataset(
        {"images": sizes, "annotations": difficult, "categories": categories}, source="truth.json"
    )
    found = [(i, CAT, BOX, 0.6) for i in range(10, 60)]  # difficult cats are not found, which is no miss
    found += [(0, CAT, OTHER, score) for score in (0.7, 0.6, 0.5)]
    comparison = CocoEvaluator(truth).compare(detections(found, images=images, dtype=np.float64))
    thresholds = miss_rate_thresholds(comparison, miss_rate=0.05, confidence=0.9)
    assert thresholds.classes["cat"].score == thresholds.overall.score == 0.6
    assert thresholds.classes["cat"].false_positives == 2 / 60
    assert (thresholds.classes["cat"].objects, thresholds.classes["cat"].images) == (50, 50)
    assert thresholds.classes["dog"].shortfall == "no objects"
    assert "no objects" in thresholds.table()
    assert json.loads(json.dumps(thresholds.to_json()))["overall"]["images"] == 50


def described(**stored):
    f1 = {"overall": 0.4, "classes": {"cat": 0.5}} if stored else {}
    names = ClassNames.from_categories([{"id": CAT, "name": "cat"}, {"id": DOG, "name": "dog"}])
    description = Description(
        model_name="m", hparams={}, categories=names.to_categories(), weights="raw", score_thresholds={**f1, **stored}
    )
    return description_of(json.loads(json.dumps(vars(description))))


def test_stored_thresholds_are_chosen_by_kind():
    thresholds = miss_rate_thresholds(comparison_of([[0.75]] * 45), miss_rate=0.05, confidence=0.9)
    description = described(miss_rate=thresholds.to_store(otherwise=0.4))
    stored = ScoreThresholds.stored_in(description)
    assert (stored.overall, stored.by_category) == (0.4, {CAT: 0.5})
    guaranteed = stored.chosen("miss_rate")
    assert (guaranteed.overall, guaranteed.by_category) == (0.75, {CAT: 0.75})
    assert "at most 0.05 of the objects missed with 0.9 confidence, stored with the model" in str(guaranteed)
    assert guaranteed.chosen("f1") == stored
    exported = with_default_thresholds(description, "miss_rate")
    assert exported.score_thresholds["overall"] == 0.75  # where a reader of the file's metadata finds it
    assert ScoreThresholds.stored_in(exported) == guaranteed
    assert ScoreThresholds.stored_in(exported).chosen("f1") == stored
    assert with_default_thresholds(description, "f1") == description


@pytest.mark.parametrize("stored", [{}, {"miss_rate": {}}])
def test_a_kind_that_is_not_stored_is_one_line(stored):
    for choose in (
        ScoreThresholds.stored_in(described(**stored)).chosen,
        lambda kind: with_default_thresholds(described(**stored), kind),
    ):
        with pytest.raises(InputError, match=r"^--threshold=miss_rate: the model stores no such thresholds; eval.py"):
            choose("miss_rate")


def test_a_class_without_a_guarantee_is_named():
    rows = [[0.75]] * 45
    truth = ground_truth([*((i, CAT, BOX) for i in range(45)), *((i, DOG, OTHER) for i in range(45))], images=range(45))
    found = [(i, CAT, BOX, 0.75) for i in range(len(rows))]
    comparison = CocoEvaluator(truth).compare(detections(found, images=range(45), dtype=np.float64))
    thresholds = miss_rate_thresholds(comparison, miss_rate=0.05, confidence=0.9)
    chosen = ScoreThresholds.stored_in(described(miss_rate=thresholds.to_store(otherwise=0.4))).chosen("miss_rate")
    assert (chosen.overall, chosen.by_category) == (0.4, {CAT: 0.75})
    assert "(not for dog, all classes)" in str(chosen)
