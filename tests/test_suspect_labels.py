"""Suspect labels: errors planted in drawn labels, probabilities beside a known mixture, files read by other readers."""

import json
from pathlib import Path

import numpy as np
import pytest
from coco_cases import ground_truth
from drawn_records import draw_records

import efficientdet
from efficientdet.plugins.labeling.suspect_labels import (
    count_errors,
    error_probabilities,
    find_suspects,
    isotonic,
    shown_errors,
)
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.errors import InputError

CAT, DOG = 3, 7
MOVE = np.array([12, 8, 0, 0])
KINDS = ("missing", "wrong_class", "badly_placed", "superfluous")


def detections(boxes, images):
    """`boxes`: (image, class, box, score)."""
    places = np.array([box for _, _, box, _ in boxes], np.float64).reshape(-1, 4)
    places[:, 2:] += places[:, :2]
    return DetectionRows(
        np.array([image for image, *_ in boxes], np.int64),
        places[:, [1, 0, 3, 2]],
        np.array([score for *_, score in boxes]),
        np.array([category for _, category, *_ in boxes], np.int64),
        np.arange(images),
    )


def suspects_of(labels, found, images):
    comparison = CocoEvaluator(ground_truth(labels, images=range(images))).compare(rows := detections(found, images))
    suspects, counts = find_suspects(comparison, boxes_xywh(rows.boxes)[comparison.detected])
    return suspects, comparison, counts


def test_isotonic_regression_is_the_maximum_of_minima_of_means():
    rng = np.random.default_rng(0)
    values, weights = rng.integers(0, 5, 40) / 4 + np.arange(40) / 30, rng.uniform(0.5, 2, 40)
    means = [[np.average(values[j : k + 1], weights=weights[j : k + 1]) for k in range(j, 40)] for j in range(40)]
    expected = [max(min(means[j][i - j :]) for j in range(i + 1)) for i in range(40)]
    np.testing.assert_allclose(isotonic(values, weights), expected, rtol=1e-12)
    assert isotonic(np.zeros(0), np.zeros(0)).shape == (0,)


def test_probabilities_of_a_known_mixture():
    rng = np.random.default_rng(1)
    is_error = rng.uniform(size=4000) < 0.05
    given = np.where(is_error, rng.normal(4, 1, 4000), rng.normal(0, 1, 4000))
    chances = error_probabilities({"a": given}, {"a": rng.normal(4, 1, 4000)}, labels=4000)["a"]
    true = 1 / (1 + 0.95 / 0.05 * np.exp(8 - 4 * given))  # Bayes, from the ratio of the two normal densities
    assert chances.sum() == pytest.approx(is_error.sum(), rel=0.3)
    assert np.abs(chances - true).mean() < 0.02
    few = error_probabilities({"a": given[:4], "b": given}, {"a": given, "b": given}, labels=4000)
    assert not few["a"].any()  # too few to estimate anything from
    assert not few["b"].any()  # evidence that errors do not change


@pytest.mark.parametrize("errors", [0, 3, 20, 100])
def test_the_interval_has_the_number_of_errors(errors):
    """The evidence of errors in 2,000 labels is 0.2 to 1; a weak detector adds clutter below 0.5."""
    hits = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        given = np.concatenate((rng.uniform(0.2, 1, errors), rng.uniform(0, 0.5, 300)))
        count = count_errors(given, rng.uniform(0.2, 1, 8000), labels=2000, shown=True)
        hits += count.low <= errors <= count.high
        assert (count.estimate == 0) == (count.low < 0.5)
        assert count.estimate or errors < 100
    assert hits >= 36


def test_weak_evidence_shows_nothing():
    rng = np.random.default_rng(0)
    count = count_errors(rng.uniform(0, 0.3, 50), rng.uniform(0, 0.4, 400), labels=100, shown=True)
    assert (count.estimate, count.low, count.high) == (0, 0, pytest.approx(14, abs=12))


def planted(images=60, errors=9, seed=1):
    """Objects in a row in each image; noisy detections of the true ones, and clutter; errors of each kind in labels."""
    rng = np.random.default_rng(seed)
    true = [
        (image, (CAT, DOG)[rng.integers(2)], np.array([60 * i + 5, 20, 30, 40], float))
        for image in range(images)
        for i in range(8)
    ]
    found = [(image, kind, box + rng.normal(0, 1, 4), rng.beta(8, 2)) for image, kind, box in true]
    found += [
        (image, CAT, np.array([60 * i + 20, 150, 30, 40]), rng.beta(1, 9)) for image, *_ in true[::8] for i in (1, 3)
    ]
    labels, kinds = dict(enumerate(true)), {}
    for number, kind in zip(rng.permutation(len(true)).tolist(), np.repeat(KINDS[:3], errors).tolist(), strict=False):
        image, category, box = labels.pop(number)
        kinds[image, *box] = kind
        if kind == "wrong_class":
            labels[number] = image, CAT + DOG - category, box
        elif kind == "badly_placed":
            del kinds[image, *box]
            kinds[image, *(box := box + MOVE)] = kind
            labels[number] = image, category, box
    for image in rng.permutation(images)[:errors].tolist():
        kinds[image, *(box := np.array([300.0, 220, 30, 40]))] = "superfluous"
        labels[len(labels) + 1000] = image, CAT, box
    return list(labels.values()), found, kinds


def test_finds_planted_errors_and_proposes_the_right_labels():
    labels, found, kinds = planted(seed=1)
    suspects, comparison, counts = suspects_of(labels, found, 60)
    right = 0
    for one in suspects[: len(kinds)]:
        place = one.box if one.kind == "missing" else comparison.object_boxes[one.label]
        near = {kind for (image, *box), kind in kinds.items() if image == one.image and np.abs(place - box).max() < 8}
        right += one.kind in near
        assert (one.label < 0) == (one.kind == "missing")
        assert (one.box is None) == (one.kind == "superfluous") == (one.class_index == -1)
        if one.kind == "wrong_class":
            assert one.class_index == 1 - comparison.objects.classes[one.label]
        if one.kind == "badly_placed":
            assert abs(comparison.object_boxes[one.label] - one.box - MOVE).max() < 8
    assert right == len(kinds)
    assert {one.kind for one in suspects[: len(kinds)]} == set(KINDS)
    for kind in ("missing", "wrong_class"):
        assert counts[kind].low <= 9 <= counts[kind].high < 25
        assert counts[kind].estimate == pytest.approx(9, abs=4)
    total = shown_errors(counts)
    assert counts["missing"].low < total.low < 18 < total.high < 40
    for kind in ("badly_placed", "superfluous"):
        assert counts[kind].estimate == counts[kind].low == 0
        assert 9 <= counts[kind].high < 60
    assert [one.harm for one in suspects] == sorted((one.harm for one in suspects), reverse=True)
    assert all(0 < one.harm <= one.probability <= 1 for one in suspects)


@pytest.mark.parametrize("without", ["labels", "detections", "images"])
def test_nothing_to_compare(without):
    labels, found, _ = planted(images=3, errors=0)
    suspects, *_ = suspects_of(
        [] if without != "detections" else labels, [] if without != "labels" else found, 0 if without == "images" else 3
    )
    assert suspects == []


@pytest.mark.parametrize("seed", range(8))
def test_labels_without_a_detection_are_at_most_superfluous(seed):
    rng = np.random.default_rng(seed)
    labels = [(int(image), CAT, rng.uniform(1, 200, 4)) for image in rng.integers(6, size=20)]
    found = [(image, DOG if box[0] < 50 else CAT, box[::-1], rng.random()) for image, _, box in labels[12:]]
    suspects, *_ = suspects_of(labels[:12], found, 6)
    empty = set(range(6)) - {image for image, *_ in found}
    assert {one.kind for one in suspects if one.image in empty} <= {"superfluous"}


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 8}, side=256)


def test_files_to_correct_labels_in(drawn, tmp_path, capsys):
    content = json.loads(Path(drawn.annotations("val")).read_text())
    found = [
        {**{key: entry[key] for key in ("image_id", "category_id", "bbox")}, "score": 0.9 - number / 1000}
        for number, entry in enumerate(content["annotations"])
        if not entry["iscrowd"]
    ]
    ids = [category["id"] for category in content["categories"]]
    for one in found[:6]:  # to the detector, these labels have the wrong class
        one["category_id"] = next(number for number in ids if number != one["category_id"])
    results = tmp_path / "results.json"
    results.write_text(json.dumps(found))
    result = efficientdet.evaluate(None, drawn.folder, results=results, suspects=tmp_path / "out", bootstrap=0)
    assert str(result.suspects) in capsys.readouterr().out
    listed = json.loads((tmp_path / "out" / "suspects.json").read_text())
    page = result.suspects.read_text()
    assert page.count("data:image/jpeg") == len(listed) > 0
    name_of = dict(zip(drawn.class_names.category_ids, drawn.class_names.names, strict=True))
    renamed = {(one["image_id"], *np.round(one["bbox"])): name_of[one["category_id"]] for one in found[:6]}
    for one in listed[:6]:
        assert one["kind"] == "wrong_class"
        assert one["proposal"]["category"] == renamed[one["image_id"], *np.round(one["proposal"]["bbox"])]
    proposed = json.loads((tmp_path / "out" / "proposed.json").read_text())["annotations"]
    marked = [one for one in proposed if "attributes" in one]
    assert len(marked) == sum(one["proposal"] is not None for one in listed)
    converted = efficientdet.convert(
        drawn.folder / "val",
        tmp_path / "coco",
        annotations=tmp_path / "out" / "proposed.json",
        format="coco",
        val_fraction=0.5,
        num_threads=1,
        max_bad_fraction=0,
    )
    removed = sum(one["proposal"] is None for one in listed)
    assert sum(converted.boxes.values()) == len(proposed)
    assert len(proposed) <= len(content["annotations"]) - removed + len(listed)
    assert set(converted.class_names) <= set(drawn.class_names.names)


def test_suspects_need_the_images(drawn, tmp_path):
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(InputError, match="val_file_pattern is missing"):
        efficientdet.evaluate(
            None, results=tmp_path / "results.json", val_json_file=drawn.annotations("val"), suspects=tmp_path / "out"
        )
