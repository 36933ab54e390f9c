"""Evaluation of results that another program wrote, and of exported files."""

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records
from text_tables import rows

import efficientdet
from dataset.class_names import ClassNames
from dataset.input.pipeline import original_images
from dataset.records.record_index import index_records
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint
from efficientdet.inference.detect import Detector
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 5}, side=80)


@pytest.fixture(scope="module")
def truth(drawn):
    return json.loads(Path(drawn.annotations("val")).read_text())


def perfect(truth):
    """Return what the annotations say, as COCO's results."""
    return [
        {**{key: entry[key] for key in ("image_id", "category_id", "bbox")}, "score": 0.9}
        for entry in truth["annotations"]
        if not entry["iscrowd"]
    ]


def by_file_name(truth, shown):
    names = {image["id"]: shown(image["file_name"]) for image in truth["images"]}
    return [{**entry, "image_id": names[entry["image_id"]]} for entry in perfect(truth)]


WRITERS = {
    "ids": perfect,
    "ids as text": lambda truth: [{**entry, "image_id": str(entry["image_id"])} for entry in perfect(truth)],
    "stems": lambda truth: by_file_name(truth, lambda name: Path(name).stem),
    "paths": lambda truth: by_file_name(truth, lambda name: f"C:\\photos\\{name}"),
    "file_name beside another id": lambda truth: [
        {**one, "image_id": 3, "file_name": one["image_id"]} for one in by_file_name(truth, str)
    ],
}


@pytest.mark.parametrize("ground_truth", ["records", "json", "both"])
def test_results_of_another_program(drawn, truth, tmp_path, ground_truth, capsys):
    for name, write in WRITERS.items():
        (tmp_path / "results.json").write_text(json.dumps(write(truth)))
        found = efficientdet.evaluate(
            None,
            None if ground_truth == "json" else drawn.folder,
            val_json_file=None if ground_truth == "records" else drawn.annotations("val"),
            results=tmp_path / "results.json",
            report=None if ground_truth == "json" else tmp_path / "report",
        )
        assert found.numbers["AP"] == pytest.approx(1), name
        assert (found.images, found.detections) == (5, len(perfect(truth)))
    printed = capsys.readouterr().out
    assert f"{found.numbers} csv format: 0,100.00,100.00,100.00," in printed
    if found.report:
        assert "results.json" in found.report.read_text()


def test_masks_of_results_are_evaluated(tmp_path):
    drawn = draw_records(tmp_path, images={"val": 3}, side=64, with_masks=True)
    content = json.loads(Path(drawn.annotations("val")).read_text())
    results = [
        {**{key: entry[key] for key in ("image_id", "category_id", "bbox", "segmentation")}, "score": 0.9}
        for entry in content["annotations"]
        if not entry["iscrowd"]
    ]
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = efficientdet.evaluate(None, None, val_json_file=drawn.annotations("val"), results=tmp_path / "results.json")
    assert found.mask_numbers["AP50"] == pytest.approx(1)


def test_a_single_image_and_images_without_objects_are_explained_in_a_line(drawn, truth, tmp_path, capsys):
    written = tmp_path / "results.json"
    written.write_text(json.dumps(perfect(truth)))
    found = efficientdet.evaluate(None, drawn.folder, results=written, eval_samples=1)
    assert (found.images, found.intervals) == (1, {})
    assert efficientdet.evaluate(None, drawn.folder, results=written, eval_samples=2).images == 2
    out = capsys.readouterr().out
    assert "\nno 95 % intervals: a single image has no spread\n" in out
    content = json.loads(Path(drawn.annotations("val")).read_text())
    (tmp_path / "empty.json").write_text(json.dumps({**content, "annotations": []}))
    efficientdet.evaluate(None, None, results=written, val_json_file=tmp_path / "empty.json")
    assert (
        f"\nAP is -1: {tmp_path}/empty.json has no object (crowds aside) on the 5 evaluated" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 99}, "1 of {n} detections are of images that the data does not have, such as 99; expected image"),
        ({"image_id": "x"}, "1 of {n} detections are of images that the data does not have, such as 'x'; expected"),
        ({"file_name": "x.jpg"}, "1 of {n} detections are of images that the data does not have, such as 'x.jpg'"),
        ({"category_id": 0}, "detection 0 has category id 0, expected one of 1, 2, 4, 7, 9; they seem to begin with 0, "
                             "as those of YOLO: add 1 to each"),
        ({"category_id": "cat"}, "detection 0 has category id 'cat', expected one of 1, 2, 4, 7, 9"),
        ({"bbox": [1, 2, 3]}, "detection 0 has bbox [1, 2, 3], expected x, y, width and height in pixels"),
        ({"score": None}, "detection 0 has score None, expected a number"),
        *((text, "is no file of results; expected COCO's list") for text in ("{}", "[1]", "3")),
    ],
)  # fmt: skip
def test_foreign_results_are_one_line(drawn, truth, tmp_path, change, message):
    first, *rest = perfect(truth)
    content = [{**first, **change}, *rest] if isinstance(change, dict) else json.loads(change)
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        efficientdet.evaluate(None, drawn.folder, results=tmp_path / "results.json")
    assert message.format(n=len(rest) + 1) in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/results.json: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    rows(r"""
{'results': 'a.json', 'ckpt_path': 'b'} | results=a.json and --ckpt_path=b: expected only one of them
{'results': 'a.json', 'weights': 'raw'} | a.json: is evaluated as it is, without --weights
{'results': 'a.json', 'runtime': 'openvino'} | a.json: is evaluated as it is, without --runtime
{'results': 'a.json', 'report': 'r', 'val_file_pattern': None} | val_file_pattern is missing
{'results': 'nosuch.json'} | results=nosuch.json: there is no such file
{'ckpt_path': 'a.onnx', 'hparams': 'image_size=64'} | a.onnx: is evaluated as it is, without --hparams
{'ckpt_path': 'nosuch.onnx'} | ckpt_path=nosuch.onnx: there is no such file
{'ckpt_path': 'a.tflite', 'runtime': 'openvino'} | a.tflite is a file of LiteRT; openvino cannot run it
"""),
)
def test_flags_of_checkpoints_are_refused(drawn, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a.json", "a.onnx", "a.tflite"):
        Path(name).touch()
    given = {
        "ckpt_path": None,
        "val_file_pattern": drawn.folder,
        "val_json_file": drawn.annotations("val"),
        **arguments,
    }
    with pytest.raises(InputError, match=message):
        efficientdet.evaluate(**given)


def test_an_exported_file_is_evaluated_with_the_ids_of_the_data(drawn, truth):
    """The file numbers the classes in another order."""
    other = ClassNames(tuple(range(20, 25)), drawn.class_names.names[::-1])
    new_id = dict(zip(drawn.class_names.category_ids, other.category_ids[::-1], strict=True))
    in_order = original_images(index_records(drawn.records("val")), range(5))
    waiting = iter([image.image_id for image in in_order])

    def detect(images):
        image_id = next(waiting)
        found = [entry for entry in perfect(truth) if entry["image_id"] == image_id]
        boxes = [(y, x, y + height, x + width) for x, y, width, height in (entry["bbox"] for entry in found)]
        return [
            DetectionRows.of_image(
                np.array(boxes, np.float32).reshape(-1, 4),
                np.full(len(found), 0.9, np.float32),
                np.array([new_id[entry["category_id"]] for entry in found], np.int64),
            )
        ]

    def measures(names):
        loaded = Detector(detect, names, ScoreThresholds())
        config = EvaluationConfig(
            ckpt_path="d.onnx",
            model=ModelConfig(class_names=drawn.class_names),
            records=drawn.records("val"),
            open_file=lambda: loaded,
        )
        return evaluate_checkpoint(config)

    assert measures(other).numbers["AP"] == pytest.approx(1)
    with pytest.raises(InputError, match=r"d.onnx: its classes are a, b; those of the data are ball, fish"):
        measures(ClassNames.numbered(["a", "b"]))
