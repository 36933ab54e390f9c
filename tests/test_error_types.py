"""TIDE's six types: worked by hand, beside a plain implementation, and by pycocotools on fixed detections."""

from dataclasses import replace

import numpy as np
import pytest
from coco_cases import BOX, OTHER, by_pycocotools, detections, ground_truth

from object_detection.coco.error_analysis import ERROR_TYPES, ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator

CAT, DOG = 3, 7


def analysis_of(truth, rows):
    return ErrorAnalysis(comparison=CocoEvaluator(truth).compare(rows))


# Of 3 cats by falling score: on nothing, on a dog, right, a second time, right. Of 2 dogs: near a cat, half beside its
# dog.
OBJECTS = [(0, CAT, BOX), (0, DOG, OTHER), (1, CAT, OTHER), (1, DOG, BOX), (2, CAT, BOX)]
FOUND = [
    (0, CAT, (400, 300, 50, 50), 0.95),
    (0, CAT, OTHER, 0.90),
    (0, CAT, BOX, 0.85),
    (0, CAT, (12, 20, 100, 50), 0.80),
    (1, CAT, OTHER, 0.75),
    (0, DOG, (60, 20, 100, 50), 0.70),
    (1, DOG, (60, 20, 100, 50), 0.50),
]
TYPES = ["background", "classification", "", "duplicate", "", "both", "localization"]


@pytest.fixture(scope="module")
def by_hand():
    return analysis_of(ground_truth(OBJECTS, images=(0, 1, 2)), detections(FOUND, images=(0, 1, 2)))


def test_one_of_each_type(by_hand):
    assert by_hand.errors.types.tolist() == TYPES
    assert by_hand.errors.fixes.tolist() == [-1, 1, -1, -1, -1, -1, 3]
    assert by_hand.errors.missed.tolist() == [False] * 4 + [True]
    assert {name: cost.count for name, cost in by_hand.costs.items()} == dict.fromkeys(ERROR_TYPES, 1)


def test_what_each_type_costs(by_hand):
    """AP at 101 recalls: a third of the cats reaches 0 to .33 (34), two thirds .66 (67), half of the dogs .5 (51)."""
    cat = (67 * 2 / 5) / 101  # right are the 3rd and the 5th: 1/3 and 2/5, of which the higher one counts for both
    wanted = {
        "classification": ((67 * 2 / 4) / 101, 51 / 101),  # the 2nd cat becomes the first dog
        "localization": (cat, 51 / 2 / 101),
        "both": (cat, 0.0),
        "duplicate": ((67 * 2 / 4) / 101, 0.0),
        "background": ((34 * 1 / 2 + 33 * 2 / 4) / 101, 0.0),
        "missed": (2 / 5, 0.0),  # of two cats both are found
    }
    for name, (of_cats, of_dogs) in wanted.items():
        cost = by_hand.costs[name]
        np.testing.assert_allclose(cost.class_ap, [of_cats - cat, of_dogs], atol=1e-9, err_msg=name)
        assert cost.ap == pytest.approx((of_cats - cat + of_dogs) / 2), name


def test_mended_is_the_best_of_those_that_aim_at_an_object():
    """Of two badly placed boxes the better one; none where the object has been found, or belongs to a better cat."""
    beside = (60, 20, 100, 50)
    found = [(0, CAT, beside, 0.5), (0, CAT, (65, 20, 100, 50), 0.6), (1, CAT, BOX, 0.9), (1, CAT, beside, 0.3)]
    analysis = analysis_of(ground_truth([(0, CAT, BOX), (1, CAT, BOX)]), detections(found))
    assert analysis.errors.types.tolist() == ["localization", "localization", "", "localization"]
    assert analysis.errors.fixes.tolist() == [-1, 0, -1, -1]
    assert not analysis.errors.missed.any()
    assert analysis.costs["localization"].ap == pytest.approx(1 - 51 / 101)


def test_crowds_and_difficult_objects_are_no_errors():
    truth = ground_truth([(0, CAT, BOX), (0, CAT, OTHER, 1), (1, DOG, BOX)])
    truth = replace(truth, annotations=(*truth.annotations[:2], {**truth.annotations[2], "difficult": 1}))
    analysis = analysis_of(truth, detections([(0, CAT, OTHER, 0.9), (1, DOG, BOX, 0.8), (1, CAT, BOX, 0.7)]))
    assert analysis.errors.types.tolist() == ["", "", "background"]
    assert analysis.errors.missed.tolist() == [True, False, False]


def iou(one, other):
    (x, y, w, h), (u, v, s, t) = one, other
    shared = max(0.0, min(x + w, u + s) - max(x, u)) * max(0.0, min(y + h, v + t) - max(y, v))
    return shared / (w * h + s * t - shared)


def plain_types(objects, found):
    """A walk through each image: type, number of the object aimed at, and the objects that nothing aims at or finds."""
    types, aims, taken, order = [""] * len(found), {}, {}, sorted(range(len(found)), key=lambda d: -found[d][3])
    for d in order:
        image, category, box, _ = found[d]
        free = [
            g
            for g, (i, c, b) in enumerate(objects)
            if (i, c) == (image, category) and g not in taken and iou(box, b) >= 0.5
        ]
        if free:
            taken[max(free, key=lambda g: iou(box, objects[g][2]))] = d
    for d in order:
        image, category, box, _ = found[d]
        if d in taken.values():
            continue
        own = {g: iou(box, b) for g, (i, c, b) in enumerate(objects) if (i, c) == (image, category)}
        other = {g: iou(box, b) for g, (i, c, b) in enumerate(objects) if i == image and c != category}
        nearest = max(own.values(), default=0), max(other.values(), default=0)
        if 0.1 <= nearest[0] <= 0.5:
            types[d], aims[d] = "localization", max(own, key=own.get)
        elif nearest[1] >= 0.5:
            types[d], aims[d] = "classification", max(other, key=other.get)
        elif nearest[0] >= 0.5:
            types[d] = "duplicate"
        else:
            types[d] = "background" if max(nearest) <= 0.1 else "both"
    aims = {d: g for d, g in aims.items() if g not in taken}
    best = {}
    for d in order:
        if d in aims:
            best.setdefault(aims[d], d)
    return (
        types,
        {d: g for g, d in best.items()},
        [g for g in range(len(objects)) if g not in taken and g not in aims.values()],
    )


def drawn(seed):
    """Objects and detections beside them, on quarters of a pixel, which float32 holds."""
    random = np.random.default_rng(seed)
    objects = [
        (int(random.integers(6)), int(random.choice([CAT, DOG])), tuple((random.integers(40, 800, 4) / 4).tolist()))
        for _ in range(24)
    ]
    found = []
    for number in range(120):
        image, category, box = objects[random.integers(24)]
        box = np.array(box) + random.normal(0, (4, 30, 12)[number % 3], 4).round(2)
        box = (np.maximum(box * 4, 20).round() / 4).tolist()
        found.append((image, category if random.random() < 0.7 else CAT + DOG - category, tuple(box), number / 256))
    return objects, [found[number] for number in random.permutation(120)]


@pytest.mark.parametrize("seed", range(4))
def test_beside_plain_types_and_really_mended_detections(seed):
    objects, found = drawn(seed)
    truth, images = ground_truth(objects, images=range(6)), list(range(6))
    analysis = analysis_of(truth, detections(found, images=images))
    types, mends, missed = plain_types(objects, found)
    assert len(set(types)) == 6
    assert analysis.errors.types.tolist() == types
    assert {d: g for d, g in enumerate(analysis.errors.fixes.tolist()) if g >= 0} == mends
    assert np.flatnonzero(analysis.errors.missed).tolist() == missed
    results = [
        {"image_id": image, "category_id": category, "bbox": list(box), "score": score}
        for image, category, box, score in found
    ]
    before = average_precision(truth, results)
    for name in ERROR_TYPES:
        mended = [
            result if types[d] != name else put_right(result, objects[mends[d]])
            for d, result in enumerate(results)
            if types[d] != name or d in mends
        ]
        left = (
            truth
            if name != "missed"
            else replace(
                truth,
                annotations=tuple(annotation for g, annotation in enumerate(truth.annotations) if g not in missed),
            )
        )
        gain = average_precision(left, mended) - before
        assert analysis.costs[name].ap == pytest.approx(max(gain, 0.0), abs=1e-12), name
    assert sum(cost.ap > 0.001 for cost in analysis.costs.values()) >= 4


def put_right(result, found_object):
    _, category_id, box = found_object
    return {**result, "category_id": category_id, "bbox": list(box)}


def average_precision(truth, results):
    precision = by_pycocotools(truth, results, image_ids=list(truth.image_sizes)).eval["precision"][0, :, :, 0, 2]
    return precision[precision > -1].mean()
