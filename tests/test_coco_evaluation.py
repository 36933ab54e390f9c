import json
from dataclasses import replace

import numpy as np
import pytest
from coco_cases import BOX, CATEGORIES, OTHER, by_pycocotools, detections, ground_truth, read_ground_truth, rows_of

from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.measures import MEASURE_NAMES
from object_detection.coco.run_length_masks import pasted_masks, run_lengths


def measure(objects, found, *, images=(0, 1), **truth):
    return CocoEvaluator(ground_truth(objects, **truth)).evaluate(detections(found, images=images))


GRID = [(7 * (i % 70), 6 * (i // 70), 5, 4) for i in range(4200)]


@pytest.mark.parametrize(
    ("objects", "found", "expected"),
    [
        # Precision is 1 up to recall 0.5: at 51 of the 101 recalls 0, 0.01, ... 1.
        ([(0, 3, BOX), (1, 3, OTHER)], [(0, 3, BOX, 0.6)], {"AP": 51 / 101, "ARmax100": 0.5}),
        ([(0, 3, BOX)], [(0, 3, OTHER, 0.9), (0, 3, BOX, 0.6)], {"AP": 0.5, "ARmax1": 0.0}),
        # An object is found once. Precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1: at 51 recalls 1, at 50 recalls 2/3.
        (
            [(0, 3, BOX), (1, 3, OTHER)],
            [(0, 3, BOX, 0.9), (0, 3, BOX, 0.8), (1, 3, OTHER, 0.7)],
            {"AP": (51 + 50 * 2 / 3) / 101},
        ),
        # 75 of 100 pixels wide: IoU 0.75, met by 0.50, 0.55, ... 0.75, six of the ten thresholds.
        ([(0, 3, (10, 20, 100, 50))], [(0, 3, (10, 20, 75, 50), 0.9)], {"AP": 0.6, "AP75": 1.0}),
        ([(0, 3, BOX), (0, 3, OTHER, 1)], [(0, 3, OTHER, 0.9), (0, 3, BOX, 0.6)], {"AP": 1.0}),  # in a crowd
        ([(0, 3, BOX), (1, 7, OTHER)], [(0, 3, BOX, 0.6), (1, 7, OTHER, 0.5)], {"AP": 1.0, "APs": -1.0}),
        # 100 of 4,200 found: precision is 1 up to recall 0.024, at 3 of the 101 recalls.
        ([(0, 3, box) for box in GRID], [(0, 3, box, 0.9) for box in GRID[::42]], {"AP": 3 / 101}),
    ],
)
def test_by_hand(objects, found, expected):
    numbers = measure(objects, found).numbers
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)


def test_images_unknown_to_the_ground_truth():
    measures = measure([(0, 3, BOX)], [(0, 3, BOX, 0.6), (9, 3, BOX, 0.9)], images=[0, 9])
    assert measures.numbers["AP"] == pytest.approx(0.5)
    assert measures.unknown_images == 1
    assert "1 of the 2 evaluated images are not in the ground truth" in measures.table()


def test_neighboring_large_image_ids():
    images = (2**53, 2**53 + 1)
    measures = measure([(2**53 + 1, 3, BOX)], [(2**53 + 1, 3, BOX, 0.6), (2**53, 3, BOX, 0.7)], images=images)
    assert measures.unknown_images == 2
    truth = ground_truth([(2**53 + 1, 3, BOX)], images=images)
    assert CocoEvaluator(truth).evaluate(detections([(2**53 + 1, 3, BOX, 0.6)], images=images)).numbers[
        "AP"
    ] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("objects", "found", "images", "ap", "cause"),
    [
        ([(0, 3, BOX)], [], [0, 1], 0.0, "no detection: on none of 2 images does a score exceed the threshold"),
        ([], [(0, 3, BOX, 0.6)], [0, 1], -1.0, "has no object"),
        ([(0, 3, BOX, 1)], [(0, 3, BOX, 0.6)], [0, 1], -1.0, "has no object (crowds aside) on the 2 evaluated images"),
        ([(0, 3, BOX)], [(0, 3, BOX, 0.6)], [], -1.0, "no image was evaluated"),
        (
            [(0, 3, BOX)],
            [(5, 3, BOX, 0.6)],
            range(5, 12),
            -1.0,
            "no image id in common: the evaluated images are [5, 6, 7, 8, 9, ... (7 in all)], those of",
        ),
        (
            [(0, 3, BOX)],
            [(0, 7, BOX, 0.6)],
            [0, 1],
            0.0,
            "no class in common: the detections have the category ids [7], the objects [3] of truth.json",
        ),
        (
            [(0, 3, BOX), (1, 7, BOX)],
            [(0, 7, BOX, 0.6)],
            [0, 1],
            0.0,
            "same class is IoU 0.00, of any class 1.00; the highest score is 0.6: the classes seem mixed up",
        ),
        (
            [(0, 3, BOX)],
            [(0, 3, (60, 20, 100, 50), 0.012), (1, 3, BOX, 0.01)],
            [0, 1],
            0.0,
            "same class is IoU 0.33, of any class 0.33; the highest score is 0.012: the detector has hardly learned",
        ),
    ],
)
def test_causes_of_nothing(objects, found, images, ap, cause):
    measures = measure(objects, found, images=images)
    assert measures.numbers["AP"] == ap
    assert cause in measures.explanation
    assert "\n" not in measures.explanation
    assert f"AP is {ap:g}: " in measures.table()


def test_table_and_json():
    measures = measure(
        [(0, 3, BOX), (1, 7, OTHER)],
        [(0, 3, BOX, 0.6)],
        categories=[{"id": 3, "name": "cat"}, {"id": 7, "name": "cat"}],
    )
    table = measures.table().splitlines()
    assert table[0] == "2 images, 1 detections, 2 objects"
    assert table[1] == "AP        0.5000  precision, IoU 0.50 to 0.95"
    assert [line.split()[0] for line in table[1:13]] == list(MEASURE_NAMES)
    assert table[15:] == ["cat (3)   1.0000        1", "cat (7)   0.0000        1"]
    document = json.loads(json.dumps(measures.to_json()))
    assert list(document)[:12] == list(MEASURE_NAMES)
    assert document["AP"] == pytest.approx(0.5)
    assert document["class_ap"] == {"cat (3)": pytest.approx(1.0), "cat (7)": 0.0}


@pytest.mark.parametrize("seed", range(6))
def test_ties_crowds_and_more_than_100_detections(seed):
    """On a coarse grid, boxes, overlaps and scores of one decimal coincide: pycocotools orders equals the same way."""
    random = np.random.default_rng(seed)
    step, images = (16, 24, 40)[seed % 3], list(random.permutation(6).tolist())

    def boxes(count):
        return np.concatenate([random.integers(0, 6, (count, 2)), random.integers(1, 4, (count, 2))], axis=1) * step

    objects = [
        (int(random.choice(images)), int(random.choice([3, 7])), tuple(map(float, box)), int(random.random() < 0.2))
        for box in boxes(60)
    ]
    truth = ground_truth(objects, images=images, categories=[*CATEGORIES, {"id": 9, "name": "absent"}])
    results = [
        {
            "image_id": image_id,
            "category_id": int(random.choice([3, 7, 9])),
            "bbox": list(map(float, box)),
            "score": round(float(random.random()), 1),
        }
        for image_id, count in zip(images, (260, 40, 3, 0, 9, 30), strict=True)
        for box in boxes(count)
    ]
    results += [
        {"image_id": image_id, "category_id": category_id, "bbox": list(box), "score": round(float(random.random()), 1)}
        for image_id, category_id, box, _ in objects[::2]
    ]
    for annotation in (*truth.annotations, *results):
        x, y, width, height = map(int, annotation["bbox"])
        mask = np.zeros((400, 500), np.uint8)
        mask[y : y + height, x : x + width] = 1
        annotation["segmentation"] = run_lengths(mask)
    looked_at = images[:5]
    found = CocoEvaluator(truth).evaluate(rows_of(results, truth=truth, image_ids=looked_at))
    for kind, numbers in (("bbox", found.numbers), ("segm", found.mask_numbers)):
        oracle = by_pycocotools(truth, results, image_ids=looked_at, kind=kind)
        oracle.summarize()
        assert 0.05 < oracle.stats[0] < 0.9
        assert list(numbers.values()) == oracle.stats.tolist()


def published_numbers(expected):
    names = [name.replace("ARmax", "AR") for name in MEASURE_NAMES]
    return [[expected[source][name] for name in names] for source in ("published", "pycocotools") if expected[source]]


@pytest.mark.parametrize(
    ("folder", "kind"), [("val2014_fake100", "bbox"), ("padilla_sampled", None), ("fce_ignore", None), ("voc100", None)]
)
def test_published_numbers_of_boxes(data_folder, folder, kind):
    folder = data_folder / "cocoeval" / folder
    expected = json.loads((folder / "expected.json").read_text())
    truth, expected = read_ground_truth(folder / expected["gt"]), expected[kind] if kind else expected
    results = json.loads((folder / expected["dt"]).read_text())
    results = results["annotations"] if isinstance(results, dict) else results
    results = [{name: result[name] for name in ("image_id", "category_id", "bbox", "score")} for result in results]
    evaluator = CocoEvaluator(truth)
    exact, single = (evaluator.evaluate(rows_of(results, truth=truth, dtype=each)) for each in (np.float64, np.float32))
    for numbers in published_numbers(expected):
        np.testing.assert_allclose(list(exact.numbers.values()), numbers, atol=1e-6)
        # float32 boxes and scores may turn an overlap that lies on a threshold.
        np.testing.assert_allclose(list(single.numbers.values()), numbers, atol=2e-3)
    np.testing.assert_allclose(list(exact.numbers.values()), published_numbers(expected)[-1], atol=1e-12)
    present = [ap for ap in exact.class_ap.values() if ap >= 0]
    assert np.mean(present) == pytest.approx(exact.numbers["AP"])


@pytest.mark.parametrize(
    ("folder", "kind", "detection_file"),
    [("val2014_fake100", "segm", None), ("fce_segm", None, None), ("fce_segm", None, "dt.json")],
)
def test_published_numbers_of_masks(data_folder, folder, kind, detection_file):
    folder = data_folder / "cocoeval" / folder
    expected = json.loads((folder / "expected.json").read_text())
    truth, expected = read_ground_truth(folder / expected["gt"]), expected[kind] if kind else expected
    results = json.loads((folder / (detection_file or expected["dt"])).read_text())
    measures = CocoEvaluator(truth).evaluate(rows_of(results, truth=truth))
    for numbers in published_numbers(expected):
        np.testing.assert_allclose(list(measures.mask_numbers.values()), numbers, atol=1e-10)


def test_masks_are_in_json_and_table(data_folder):
    folder = data_folder / "cocoeval" / "val2014_fake100"
    expected = json.loads((folder / "expected.json").read_text())
    truth = read_ground_truth(folder / expected["gt"])
    results = json.loads((folder / expected["segm"]["dt"]).read_text())
    measures = CocoEvaluator(truth).evaluate(rows_of(results, truth=truth))
    assert measures.numbers["AP"] < 0.01 < measures.mask_numbers["AP"]
    document = measures.to_json()
    assert (document["mask_numbers"], document["mask_class_ap"]) == (measures.mask_numbers, measures.mask_class_ap)
    table = measures.table().splitlines()
    [header] = [number for number, line in enumerate(table) if line.startswith("class ")]
    assert table[header].split() == ["class", "AP", "of", "masks", "objects"]
    shown = ["-" if ap < 0 else f"{ap:.4f}" for ap in measures.mask_class_ap.values()]
    assert [line.split()[-2] for line in table[header + 1 :][: len(shown)]] == shown
    assert (
        table[table.index("masks") + 1] == f"AP       {measures.mask_numbers['AP']:7.4f}  precision, IoU 0.50 to 0.95"
    )


def test_masks_that_the_ground_truth_fetches_late():
    truth, asked = ground_truth([(0, 3, BOX), (1, 7, OTHER)]), []
    full = [
        run_lengths(next(pasted_masks(np.ones((1, 2, 2)), [(y, x, y + h, x + w)], size=(400, 500))))
        for x, y, w, h in (BOX, OTHER)
    ]

    def segmentations():
        asked.append(1)
        return full

    evaluator = CocoEvaluator(truth, segmentations=segmentations)
    rows = detections([(0, 3, BOX, 0.6), (1, 7, OTHER, 0.5)])
    assert evaluator.evaluate(rows).mask_numbers == {}
    assert asked == []
    masks = np.empty(2, object)
    masks[:] = full
    for _ in range(2):
        assert evaluator.evaluate(rows._replace(masks=masks)).mask_numbers["AP"] == pytest.approx(1.0)
    assert asked == [1]
    alone = CocoEvaluator(truth).evaluate(rows._replace(masks=masks))
    assert alone.mask_numbers == alone.mask_class_ap == {}  # none to compare with
    assert alone.table().splitlines()[-1] == (
        "masks are not evaluated: truth.json: an annotation has no segmentation, or its image no height and width"
    )


@pytest.mark.parametrize(
    ("found", "ap"),
    [
        ([(0, 3, OTHER, 0.9), (0, 3, BOX, 0.6)], 1.0),  # to find the difficult one is no mistake
        ([(0, 3, BOX, 0.6)], 1.0),  # not to find it neither
        ([(0, 3, OTHER, 0.9), (0, 3, OTHER, 0.8), (0, 3, BOX, 0.6)], 0.5),
    ],
)  # twice is one: it is no crowd
def test_difficult_objects_are_ignored_as_in_voc(found, ap):
    truth = ground_truth([(0, 3, BOX), (0, 3, OTHER)])
    marked = replace(truth, annotations=(truth.annotations[0], {**truth.annotations[1], "difficult": 1}))
    measures = CocoEvaluator(marked).evaluate(detections(found))
    assert measures.numbers["AP"] == pytest.approx(ap)
    assert measures.class_objects["cat"] == 1
    alone = CocoEvaluator(replace(truth, annotations=marked.annotations[1:])).evaluate(detections(found))
    assert "has no object (crowds and difficult ones aside)" in alone.explanation
