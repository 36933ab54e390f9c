"""The page of an evaluation, from records whose detections are made by changing the truth."""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from coco_cases import read_ground_truth
from drawn_records import draw_records
from html_reading import Balanced
from letterboxed_inputs import letterboxed

from dataset.input.pipeline import evaluation_dataset, original_images
from dataset.records.record_index import index_records
from efficientdet.devices.distributed import World
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator
from efficientdet.evaluation.evaluate import record_numbers
from efficientdet.evaluation.evaluation_report import (
    COLORS,
    error_plots,
    evaluation_page,
    worst_images,
    write_evaluation_report,
    write_result_page,
)
from object_detection.coco.error_analysis import ErrorAnalysis
from object_detection.coco.evaluation import CocoEvaluator, ground_truth_from_dataset
from object_detection.coco.results import DetectionRows, results_json, write_results
from object_detection.structures import Detections
from program_support.errors import InputError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 5}, side=80)


@pytest.fixture(scope="module")
def rows(drawn):
    """What the first image holds is not found, in the second stands a box too much; all else is right."""
    truth = read_ground_truth(drawn.annotations("val"))
    first, second = list(truth.image_sizes)[:2]
    kept = [a for a in truth.annotations if a["image_id"] != first and not a["iscrowd"]]
    boxes = [(y, x, y + h, x + w) for x, y, w, h in (a["bbox"] for a in kept)] + [(0, 0, 4, 4)]
    return DetectionRows(
        np.array([*(a["image_id"] for a in kept), second]),
        np.array(boxes, np.float32),
        np.full(len(boxes), 0.75, np.float32),
        np.array([*(a["category_id"] for a in kept), 1]),
        np.array(list(truth.image_sizes)),
    )


def measured(evaluator, rows):
    return {"measures": evaluator.evaluate(rows), "analysis": ErrorAnalysis(comparison=evaluator.compare(rows))}


@pytest.fixture(scope="module")
def found(drawn, rows):
    evaluator = read_evaluator(index_records(drawn.records("val")), drawn.class_names, json_file=None)
    return measured(evaluator, rows)


def test_plots_of_the_worst_images(drawn, rows, found):
    index, analysis = index_records(drawn.records("val")), found["analysis"]
    ids = [image_id for image_id, *_ in original_images(index, range(5))]
    number_of = {image_id: ids.index(image_id) for image_id in rows.evaluated_ids.tolist()}
    plots = list(error_plots([("", analysis, rows)], index, number_of=number_of, chosen=worst_images([analysis], 20)))
    first, second = rows.evaluated_ids[:2]
    missed = int((analysis.comparison.objects.images == 0).sum())
    assert [caption.split(" · ")[0] for caption, _ in plots] == [f"{first:06d}.jpg", f"{second:06d}.jpg"]
    assert f"0 correct, {missed} missed, 0 wrong" in plots[0][0]
    assert "0 missed, 1 wrong (1 background)" in plots[1][0]
    for (_, plot), expected in zip(plots, ({"missed"}, {"right", "wrong"}), strict=True):
        assert max(plot.shape) == 560
        assert {kind for kind, color in COLORS.items() if (plot == color).all(axis=-1).sum() > 50} == expected
    nothing = rows.chosen(np.zeros(len(rows.scores), bool))
    others = measured(read_evaluator(index, drawn.class_names, json_file=None), nothing)["analysis"]
    pair = [("a", analysis, rows), ("b", others, nothing)]
    [(caption, plot)] = error_plots(pair, index, number_of=number_of, chosen=worst_images([analysis, others], 1))
    assert caption.count(" missed, 0 wrong") == 2
    middle = plot.shape[1] // 2
    assert (plot[:, middle - 4 : middle + 4] == 255).all()  # between two panels


def test_everything_is_on_the_page(found, tmp_path):
    picture = ("image <7>", np.zeros((8, 8, 3), np.uint8))
    write_evaluation_report(tmp_path, "mine & theirs", facts={"records": "<val>"}, plots=[picture], **found)
    page = (tmp_path / "report.html").read_text()
    words = " ".join(Balanced(page).text)
    for wanted in (
        "mine & theirs",
        "image <7>",
        "<val>",
        "The error type that costs the most AP: missed.",
        "localization",
        "pencil",
        "background",
        "expected calibration error",
        "5 images",
        "AP75",
        "ARmax100",
    ):
        assert wanted in words, wanted
    assert "http" not in page
    assert "about boxes" not in words
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["errors"]["background"]["count"] == 1
    assert content["measures"]["AP"] == found["measures"].numbers["AP"]

    (tmp_path / "report.json").unlink()
    (tmp_path / "report.json").mkdir()
    with pytest.raises(InputError, match=r"report.json: cannot be written \(Is a directory\)"):
        write_evaluation_report(tmp_path, "mine", **found)
    masked = replace(found["measures"], mask_numbers=dict.fromkeys(found["measures"].numbers, 0.25))
    words = Balanced(evaluation_page("t", masked, found["analysis"])).text
    assert "Mask AP is reported below; all other sections are about boxes." in words
    assert any("mask AP 0.250" in word for word in words)


def test_the_page_of_a_result(drawn, rows, found, tmp_path):
    """A panel with the labels is beside that with the detections, also where nothing was detected."""
    detections, log, measures = tmp_path / "detections.json", tmp_path / "log.txt", found["measures"].to_json()
    log.touch()

    def written(detected, numbers):
        write_results(detections, results_json(detected))
        write_result_page(
            tmp_path / "result.html",
            drawn.records("val"),
            detections,
            measures=numbers,
            measured_on="validation",
            log=log,
            advice=["from <weights>"],
            commands="python serve.py --model=a",
            pages={"Evaluation": "my evaluation/report.html"},
        )
        page = (tmp_path / "result.html").read_text()
        return page, " ".join(Balanced(page).text)

    page, words = written(rows, measures | {"intervals": {"numbers": {"AP": (0.345, 0.637)}}})
    for wanted in (
        f"AP {measures['AP']:.3f} (95 % interval 0.34 to 0.64), AP50 {measures['AP50']:.3f}",
        "from <weights>",
        "python serve.py --model=a",
        "The first 2 images have the most errors",
        "At a score of 0.75 the detector finds ",
        "Label more images with the weakest classes: ",
    ):
        assert wanted in words, wanted
    assert page.count("data:image/jpeg") == 5
    assert 'href="my%20evaluation/report.html"' in page
    assert page.index("data:image/jpeg") < page.index("Next steps")
    _, words = written(rows.chosen(np.zeros(len(rows.scores), bool)), measures)
    assert "95 %" not in words
    assert "No detection is correct: train longer" in words


@pytest.mark.parametrize("classes", [1, 30])
def test_many_classes_unknown_things_and_names_of_strangers(classes):
    names = [f"<script>{number}" for number in range(classes)]
    dataset = {
        "images": [{"id": 1}],
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
        "annotations": [
            {"id": number, "image_id": 1, "category_id": number, "bbox": [50 * number, 0, 20, 20]}
            for number in range(classes)
        ],
    }
    rows = DetectionRows(
        np.ones(classes, int),
        np.array([(0, 50 * k, 20, 50 * k + 20) for k in range(classes)], np.float32),
        np.full(classes, 0.5, np.float32),
        (np.arange(classes) + 1) % classes,
        np.array([1]),
    )
    for truth in ({**dataset, "annotations": []}, dataset):
        for some in (rows.chosen(np.zeros(classes, bool)), rows):
            evaluator = CocoEvaluator(ground_truth_from_dataset(truth, source="x"))
            page = evaluation_page("t", **measured(evaluator, some))
            Balanced(page)
            assert "<script>" not in page
            assert "nan" not in page
    assert ("the 20 classes with the most errors" in page) == (classes == 30)
    assert page.count("<svg") == 2


@dataclass(frozen=True)
class Rank(World):
    parts: dict = field(default_factory=dict)

    def gather(self, value):
        self.parts[self.rank] = value
        return [self.parts[rank] for rank in range(self.size) if rank in self.parts]


def test_records_of_several_ranks(drawn):
    index, parts = index_records(drawn.records("val")), {}
    config = letterboxed(image_size=(64, 64), batch_size=2, category_ids=drawn.class_names.category_ids)

    def nothing(images, sizes, scales):
        return Detections(
            np.zeros((2, 1, 4), np.float32), np.zeros((2, 1), np.float32), np.zeros((2, 1), int), np.zeros((2, 1), bool)
        )

    for rank in (1, 0):
        batches = evaluation_dataset(index, config, samples=3, rank=rank, world_size=2)
        rows = detect_all(nothing, batches, class_names=drawn.class_names, world=Rank(rank=rank, size=2, parts=parts))
    numbers = record_numbers(index, samples=3, world_size=2)
    assert numbers == [0, 2, 1]
    assert [image_id for image_id, *_ in original_images(index, numbers)] == rows.evaluated_ids.tolist()
