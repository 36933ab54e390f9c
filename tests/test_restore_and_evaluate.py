"""From a checkpoint on disk to COCO numbers, annotated images and an exported model, with the miniature network."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from coco_cases import read_ground_truth
from drawn_records import draw_records
from letterboxed_inputs import letterboxed
from miniature import miniature_detector
from PIL import Image

import efficientdet
from dataset.class_names import ClassNames
from dataset.input.pipeline import evaluation_dataset
from dataset.input.resize import letterbox
from dataset.records.record_index import index_records
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, read_bundle, write_arrays
from efficientdet.checkpoints.description import store_thresholds
from efficientdet.checkpoints.restore import restore_detector
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.flag_paths import class_names_for
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.evaluation import evaluate
from efficientdet.evaluation.data_set_evaluator import detect_all, read_evaluator, with_category_ids
from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint
from efficientdet.exports.saved_model import export_saved_model, load_saved_model
from efficientdet.families.hyperparameters import height_and_width
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.inference.detect import Detector
from efficientdet.operations import interface
from efficientdet.prediction import image_annotation as annotate_module
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs
from model.detection_model import named_variables
from object_detection.coco.measures import MEASURE_NAMES
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import run_lengths
from object_detection.coco.score_calibration import ScoreMap
from object_detection.structures import Detections
from program_support.errors import InputError

HPARAMS = hyperparameters_of("efficientdet-d0", {"image_size": 64, "nms_configs.sigma": 0.4})


def build_miniature(hparams, *, num_classes, precision="float32"):
    return miniature_detector(num_classes, height_and_width(hparams.image_size), precision=precision)


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", build_miniature)
        yield


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 7}, side=80)


@pytest.fixture(scope="module")
def checkpoint(drawn, tmp_path_factory):
    """Raw weights as the miniature's, averages 10 % larger."""
    prefix = str(tmp_path_factory.mktemp("checkpoint") / "ckpt")
    raw = values(miniature_detector(len(drawn.class_names)))
    averages = {f"{name}/ExponentialMovingAverage": value * np.float32(1.1) for name, value in raw.items()}
    write_arrays(prefix, {**raw, **averages, "global_step": np.int64(5)}, describe(drawn.class_names, global_step=5))
    return prefix


def describe(class_names, **changes):
    defaults = {
        "model_name": "efficientdet-d0",
        "hparams": HPARAMS.to_dict(),
        "categories": class_names.to_categories(),
        "weights": "raw and averaged",
    }
    return Description(**{**defaults, **changes})


def values(detector):
    return {name: np.asarray(variable.value) for name, variable in named_variables(detector.network).items()}


def restored(path, **changes):
    return restore_detector(ModelConfig(ckpt_path=path, **changes))


# restore


@pytest.mark.parametrize(("averaged", "factor"), [(True, 1.1), (False, 1.0)])
def test_restores_averaged_or_raw_weights(checkpoint, drawn, averaged, factor):
    found = restored(checkpoint, averaged=averaged)
    start = values(miniature_detector(len(drawn.class_names)))
    for name, value in values(found.detector).items():
        np.testing.assert_array_equal(value, start[name] * np.float32(factor), err_msg=name)
    assert found.description.weights == ("averaged" if averaged else "raw")
    assert found.description.global_step == 5
    assert found.class_names == drawn.class_names


def test_checkpoint_says_what_it_is_and_overrides_have_the_last_word(checkpoint):
    found = restored(checkpoint, model_name="efficientdet-d3", overrides={"nms_configs.method": "hard"})
    assert (found.hparams.name, found.hparams.image_size, found.hparams.nms_configs.sigma) == (
        "efficientdet-d0",
        64,
        0.4,
    )
    assert found.hparams.nms_configs.method == "hard"
    assert found.description.hparams["nms_configs"]["method"] == "hard"


def test_another_model_by_name_is_refused(checkpoint):
    with pytest.raises(InputError, match="is a checkpoint of efficientdet-d0, not of --model_name=efficientdet-d1"):
        restored(checkpoint, model_name="efficientdet-d1", model_name_given=True)


def test_overrides_may_say_the_classes_as_the_reference_counts_them(checkpoint):
    assert len(restored(checkpoint, overrides={"num_classes": 91}).class_names) == 5
    with pytest.raises(InputError, match="num_classes is 4; the checkpoint has 5 classes"):
        restored(checkpoint, overrides={"num_classes": 4})


# evaluate


def inputs(drawn, batch_size=3):
    return letterboxed(image_size=(64, 64), batch_size=batch_size, category_ids=drawn.class_names.category_ids)


def perfect_predict(drawn, config):
    """Returns what the records hold, in original pixels."""
    objects = iter([batch for batch, _ in evaluation_dataset(index_records(drawn.records("val")), config)])

    def predict(images, sizes, scales):
        batch = next(objects)
        boxes = np.asarray(batch.objects.boxes) * np.tile(np.asarray(scales), 2)[:, None]
        valid = np.asarray(batch.objects.valid) & ~np.asarray(batch.objects.crowd)
        return Detections(boxes, np.where(valid, 0.9, 0.0).astype(np.float32), np.asarray(batch.objects.classes), valid)

    return predict


@pytest.mark.parametrize("against_json", [True, False])
def test_perfect_detections_have_ap_1(drawn, against_json):
    index, config = index_records(drawn.records("val")), inputs(drawn)
    evaluator = read_evaluator(index, drawn.class_names, json_file=drawn.annotations("val") if against_json else None)
    rows = detect_all(perfect_predict(drawn, config), evaluation_dataset(index, config), class_names=drawn.class_names)
    measures = evaluator.evaluate(rows)
    assert measures.numbers["AP50"] == pytest.approx(1.0)
    assert measures.numbers["AP"] > 0.9  # letterboxing rounds to whole pixels
    assert measures.images == 7
    assert measures.unknown_images == 0


@pytest.mark.parametrize(
    ("segmentation", "reason"),
    [
        ([[1, 2, 3]], "has polygon [1, 2, 3] in its segmentation, expected at least 3 pairs of x and y"),
        ([[0, 0, 1e9, 0, 0, 1e9]], "has outline of 3000000000 pixels in its segmentation, expected at most 2000000"),
        ([[0, 0, 1e5, 0, 0, 1e5]], None),
    ],
)
def test_masks_of_a_json_are_proved(drawn, tmp_path, segmentation, reason):
    """pycocotools' C code gets no invalid segmentation; a polygon across the border is valid."""
    content = json.loads(Path(drawn.annotations("val")).read_text())
    content["annotations"][1]["segmentation"] = segmentation
    (tmp_path / "val.json").write_text(json.dumps(content))
    index, config = index_records(drawn.records("val")), inputs(drawn)
    evaluator = read_evaluator(index, drawn.class_names, json_file=str(tmp_path / "val.json"))
    rows = detect_all(perfect_predict(drawn, config), evaluation_dataset(index, config), class_names=drawn.class_names)
    assert evaluator.evaluate(rows).mask_numbers == {}  # no one asks for masks
    with_masks = rows._replace(masks=np.array([run_lengths(np.ones((64, 64)))] * len(rows.scores), object))
    if reason is None:
        assert set(evaluator.evaluate(with_masks).mask_numbers) == set(MEASURE_NAMES)
    else:
        with pytest.raises(InputError, match=re.escape(reason)) as caught:
            evaluator.evaluate(with_masks)
        assert str(caught.value).startswith(f"{tmp_path / 'val.json'}: annotations[1] of image ")


def test_categories_must_have_the_same_names(drawn):
    truth = read_ground_truth(drawn.annotations("val"))
    assert with_category_ids(truth, drawn.class_names) is truth
    ids, names = drawn.class_names.category_ids, drawn.class_names.names
    for other, message in (
        (ClassNames(ids, ("cube", *names[1:])), "has 1 categories named 'ball', the detector has 0"),
        (ClassNames(ids[1:], names[1:]), "has 1 categories named 'ball', the detector has 0"),
        (ClassNames((*ids, 99), (*names, "x")), "has 0 categories named 'x', the detector has 1"),
    ):
        with pytest.raises(InputError, match=message):
            with_category_ids(truth, other)


def renumbered(names):
    """The same names under other category ids, in the reverse order."""
    return ClassNames(tuple(range(20, 20 + len(names))), names.names[::-1])


def test_the_same_names_with_other_category_ids_keep_their_rows(drawn, tmp_path):
    start, other = values(miniature_detector(len(drawn.class_names))), renumbered(drawn.class_names)
    rng = np.random.default_rng(0)
    start = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in start.items()}
    write_arrays(
        str(tmp_path / "ckpt"),
        start,
        describe(drawn.class_names, score_thresholds={"overall": 0.3, "classes": {"ball": 0.25, "star": 0.5}}),
    )
    found = restored(str(tmp_path / "ckpt"), class_names=other)
    assert found.class_names == other
    assert found.description.categories == other.to_categories()
    for name, value in values(found.detector).items():
        wanted = start[name]
        if "class-predict" in name and wanted.shape[-1] == 9 * len(other):  # anchors, then classes
            wanted = wanted.reshape(*wanted.shape[:-1], -1, len(other))[..., ::-1].reshape(wanted.shape)
        np.testing.assert_array_equal(value, wanted, err_msg=name)
    thresholds = ScoreThresholds.stored_in(found.description)  # by name, too
    assert thresholds.of(np.array([20, 21, 24])).tolist() == [0.5, 0.3, 0.25]


def test_a_json_with_other_category_ids_measures_the_same(drawn, tmp_path):
    content, other = json.loads(Path(drawn.annotations("val")).read_text()), renumbered(drawn.class_names)
    new_id = dict(zip(drawn.class_names.category_ids, other.category_ids[::-1], strict=True))
    content["categories"] = other.to_categories()
    content["annotations"] = [
        {**entry, "category_id": new_id[entry["category_id"]]} for entry in content["annotations"]
    ]
    (tmp_path / "val.json").write_text(json.dumps(content))
    assert class_names_for(tuple(drawn.records("val")), json_file=str(tmp_path / "val.json")) == drawn.class_names
    index, config = index_records(drawn.records("val")), inputs(drawn)
    rows = detect_all(perfect_predict(drawn, config), evaluation_dataset(index, config), class_names=drawn.class_names)
    [found, wanted] = [
        read_evaluator(index, drawn.class_names, json_file=file).evaluate(rows)
        for file in (str(tmp_path / "val.json"), drawn.annotations("val"))
    ]
    assert found == wanted


def test_evaluates_a_checkpoint(checkpoint, drawn, tmp_path, capsys):
    measures = evaluate_checkpoint(
        EvaluationConfig(
            model=ModelConfig(ckpt_path=checkpoint, class_names=drawn.class_names, precision="float32", use_xla=False),
            records=drawn.records("val"),
            val_json_file=drawn.annotations("val"),
            batch_size=4,
            testdev_dir=str(tmp_path / "testdev"),
            output_json=str(tmp_path / "new" / "numbers.json"),
            report=str(tmp_path),
        )
    )
    out = capsys.readouterr().out
    assert "AP50" in out
    assert all(name in out for name in drawn.class_names.names)
    stored = json.loads((tmp_path / "new" / "numbers.json").read_text())
    assert stored["AP"] == measures.numbers["AP"]
    assert stored["images"] == 7
    assert json.loads((tmp_path / "report.json").read_text())["measures"] == stored
    assert "efficientdet-d0" in (tmp_path / "report.html").read_text()
    results = json.loads((tmp_path / "testdev" / "detections_test-dev2017_test_results.json").read_text())
    assert len(results) == measures.detections > 0
    assert {result["category_id"] for result in results} <= set(drawn.class_names.category_ids)


def test_evaluates_a_held_out_folder(checkpoint, drawn, tmp_path):
    """Converted with the class ids of the training, as docs/guides/evaluate.md says."""
    content = json.loads(Path(drawn.annotations("val")).read_text())
    name_of = {category["id"]: category["name"] for category in content["categories"]}
    file_of = {image["id"]: image["file_name"] for image in content["images"]}
    rows = [
        f"{file_of[entry['image_id']]},{name_of[entry['category_id']]},{x},{y},{x + width},{y + height}"
        for entry in content["annotations"]
        for x, y, width, height in [entry["bbox"]]
    ]
    table = tmp_path / "boxes.csv"
    table.write_text("\n".join(["filename,class,xmin,ymin,xmax,ymax", *rows]) + "\n")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps({name: number for number, name in name_of.items()}))
    efficientdet.convert(
        drawn.folder / "val", tmp_path, annotations=table, val_fraction=0, label_map_json_path=ids, num_threads=1
    )
    settings = {"precision": "float32", "batch_size": 4, "use_xla": False}
    wanted = interface.evaluate(checkpoint, f"{drawn.folder}/val-*.tfrecord", **settings)
    found = interface.evaluate(checkpoint, f"{tmp_path}/train-*", **settings)
    assert found.images == wanted.images == 7
    assert found.class_ap == pytest.approx(wanted.class_ap, abs=1e-6)
    with pytest.raises(InputError, match=r"^images=val: has been removed: .*create_tfrecord.py"):
        interface.evaluate(checkpoint, images="val")


# annotate and export


def annotation(images, output_dir, *, ckpt_path=None, **changes):
    defaults = {
        "inputs": Inputs(images=tuple(map(str, images))),
        "output_dir": str(output_dir),
        "min_score_thresh": 0.0,
        "model_config": ModelConfig(ckpt_path=ckpt_path, precision="float32", use_xla=False),
    }
    return AnnotationConfig(**{**defaults, **changes})


def test_annotates_from_checkpoint_and_from_the_export_alike(checkpoint, drawn, tmp_path, capsys):
    images = sorted((drawn.folder / "val").glob("*.jpg"))[:3]
    (tmp_path / "broken.jpg").write_text("no image")
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="1 of 4 images could not be decoded"):
        annotate(annotation([*images, tmp_path / "broken.jpg"], tmp_path / "first", ckpt_path=checkpoint, batch_size=2))
    out = capsys.readouterr().out
    assert "skipped: " in out
    assert "broken.jpg: cannot be decoded" in out
    results = json.loads((tmp_path / "first" / "detections.json").read_text())
    assert "score threshold: 0, --min_score_thresh\n" in out
    assert f"images: 3, detections drawn: {len(results)} of {len(results)} (highest score " in out
    saved = str(tmp_path / "saved")
    annotate(
        annotation(images, tmp_path / "second", ckpt_path=checkpoint, saved_model_dir=saved)
    )  # writes it, then runs it
    annotate(annotation(images, tmp_path / "third", saved_model_dir=saved))
    found = [json.loads((tmp_path / name / "detections.json").read_text()) for name in ("first", "second", "third")]
    assert found[1] == found[2]
    assert {result["file_name"] for result in found[0]} == {path.name for path in images}
    scores = [np.array([result["score"] for result in results]) for results in found]
    assert min(map(len, scores)) > 10
    np.testing.assert_allclose(np.sort(scores[0])[-10:], np.sort(scores[1])[-10:], atol=2e-3)
    for path in images:
        original = np.asarray(Image.open(path))
        drawing = np.asarray(Image.open(tmp_path / "first" / path.name))
        assert drawing.shape == original.shape
        assert np.abs(drawing.astype(int) - original).mean() > 3  # something was drawn


def test_an_image_alone_has_the_detections_that_it_has_among_others(checkpoint, drawn, tmp_path):
    """Alone its operations run one by one, among others as one traced program."""
    images = sorted((drawn.folder / "val").glob("*.jpg"))[:2]
    found = {}
    for name, given in (("alone", images[:1]), ("among others", images)):
        (tmp_path / name).mkdir()
        annotate(annotation(given, tmp_path / name, ckpt_path=checkpoint))
        found[name] = [
            result
            for result in json.loads((tmp_path / name / "detections.json").read_text())
            if result["file_name"] == images[0].name
        ]
        assert not tf.config.functions_run_eagerly()  # a process may detect again
    alone, among = found["alone"], found["among others"]
    assert len(alone) == len(among) > 10
    for key, tolerance in (("score", 1e-5), ("bbox", 1e-2)):
        np.testing.assert_allclose([result[key] for result in alone], [result[key] for result in among], atol=tolerance)


@pytest.mark.parametrize(
    ("stored", "told", "drawn_scores"),
    [
        (
            {"overall": 0.3, "classes": {"fish": 0.6}},
            "0.3 (0.6 to 0.6 by class), the best F1 on the validation data, stored with",
            [0.9, 0.35],
        ),
        (  # of an earlier version: checkpoints also with thresholds for a miss rate, files with those as their default
            {"overall": 0.5, "classes": {}, "miss_rate": {"overall": 0.1, "classes": {}}},
            "0.5, the best F1 on the validation data, stored with the model",
            [0.9, 0.5],
        ),
        (
            {"overall": 0.3, "classes": {}, "f1": {"overall": 0.5, "classes": {}}},
            "0.3, the thresholds stored with the model",
            [0.9, 0.5, 0.35],
        ),
        ({}, "0.4, the default, as the model stores none", [0.9, 0.5]),
    ],
)
def test_the_default_threshold_is_the_stored_one_of_each_class(
    drawn, tmp_path, monkeypatch, capsys, stored, told, drawn_scores
):
    rows = DetectionRows.of_image(
        np.float32([[1, 1, 9, 9]] * 4), np.float32([0.9, 0.5, 0.35, 0.2]), np.array([1, 2, 4, 1])
    )
    thresholds = ScoreThresholds.stored_in(describe(drawn.class_names, score_thresholds=stored))
    monkeypatch.setattr(
        annotate_module,
        "open_model",
        lambda *_, **__: Detector(lambda images: [rows] * len(images), drawn.class_names, thresholds),
    )
    image = sorted((drawn.folder / "val").glob("*.jpg"))[0]
    annotate(annotation([image], tmp_path, min_score_thresh=None, format=("coco",)))
    found = json.loads((tmp_path / "coco.json").read_text())["annotations"]
    assert [entry["score"] for entry in found] == pytest.approx(drawn_scores)
    assert f"score threshold: {told}" in capsys.readouterr().out


def test_an_evaluation_stores_the_thresholds_where_it_is_told_to(checkpoint, drawn, tmp_path, capsys):
    prefix = str(tmp_path / "ckpt")
    write_arrays(prefix, *read_bundle(checkpoint))
    settings = {
        "records": drawn.records("val"),
        "model": ModelConfig(ckpt_path=prefix, class_names=drawn.class_names, precision="float32", use_xla=False),
    }
    with pytest.MonkeyPatch.context() as patch:
        index, config = index_records(drawn.records("val")), inputs(drawn, batch_size=8)
        patch.setattr(evaluate, "build_predict", lambda *_, **__: perfect_predict(drawn, config))
        for store in (False, True):
            report = str(tmp_path) if store else None
            measures = evaluate_checkpoint(
                EvaluationConfig(
                    **settings,
                    store_thresholds=store,
                    report=report,
                    calibrate_scores=True,
                )
            )
            assert bool(read_bundle(prefix)[1].score_thresholds) == store
    stored = read_bundle(prefix)[1].score_thresholds
    assert stored == measures.score_thresholds
    assert stored["overall"] == pytest.approx(0.9, abs=1e-4)  # each detection is right and scores this
    frequent = {name for name, count in measures.class_objects.items() if count >= 10}
    assert set(stored["classes"]) == frequent
    printed = capsys.readouterr().out
    assert f"stored in {prefix}.json" in printed
    assert len(index) == 7
    found = ScoreThresholds.stored_in(read_bundle(prefix)[1])
    assert found.overall == stored["overall"]
    assert set(stored["score_calibration"]) == frequent
    assert all(ScoreMap(*values)(0.9) > 0.95 for values in stored["score_calibration"].values())
    assert measures.score_calibration.table() in printed
    assert "Calibrated scores, held out" in (tmp_path / "report.html").read_text()
    store_thresholds(prefix, {"overall": 0.25, "classes": {}})  # of an evaluation without --calibrate_scores
    assert read_bundle(prefix)[1].score_thresholds == {**stored, "overall": 0.25, "classes": {}}


@pytest.fixture(scope="module")
def exported(drawn, tmp_path_factory):
    detector = miniature_detector(len(drawn.class_names))
    folder = str(tmp_path_factory.mktemp("saved"))
    export_saved_model(
        detector, folder, description=describe(drawn.class_names, weights="raw"), resize=letterbox((64, 64))
    )
    return detector, folder


@pytest.mark.parametrize("shape", [(2, 64, 64, 3), (3, 20, 45, 3)])
def test_exported_model_takes_images_of_any_size(exported, drawn, shape):
    detector, folder = exported
    signature, description = load_saved_model(folder)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    found = {name: np.asarray(value) for name, value in signature(images).items()}
    count, slots = shape[0], 20
    assert {name: (value.shape, value.dtype) for name, value in found.items()} == {
        "boxes": ((count, slots, 4), np.float32),
        "scores": ((count, slots), np.float32),
        "classes": ((count, slots), np.int64),
        "count": ((count,), np.int32),
    }
    assert set(found["classes"].ravel()) <= set(drawn.class_names.category_ids)
    assert (found["boxes"] <= np.tile(shape[1:3], 2) * 1.03).all()
    assert description.categories == drawn.class_names.to_categories()
    if shape[1:3] == (64, 64):
        full = np.tile(np.int32([[64, 64]]), (count, 1))
        wanted = build_predict(detector, compiled=False)(images, full, np.ones((count, 2), np.float32))
        np.testing.assert_allclose(found["scores"], np.asarray(wanted.scores), atol=1e-5)
        np.testing.assert_array_equal(found["count"], np.asarray(wanted.valid).sum(axis=1))
        ids = np.array(drawn.class_names.category_ids)[np.asarray(wanted.classes)]
        np.testing.assert_array_equal(found["classes"][:, :5], ids[:, :5])
