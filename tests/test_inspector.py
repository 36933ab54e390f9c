"""The modes dry and export of inspector.py."""

import re
from dataclasses import replace

import numpy as np
import pytest
from miniature import miniature_detector
from unfilled import unfilled_weights

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.checkpoint import Description, checkpoint_prefix, read_arrays, read_description
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime import Runtime
from efficientdet.exports import export_artifacts
from efficientdet.exports import saved_model as export_module
from efficientdet.exports.export_artifacts import Agreement, compare_detections
from efficientdet.exports.formats import SavedModel
from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters
from efficientdet.inference import checkpoint_model
from efficientdet.inference.checkpoint_model import dry_run, load_model, summary
from efficientdet.operations.benchmark_model import benchmark
from efficientdet.options.export import InspectOptions
from model.detection_model import named_variables
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import pasted_run_lengths

MODEL = ModelConfig(ckpt_path=None, model_name="efficientdet-d0", model_name_given=False, overrides={})


@pytest.fixture
def miniature(monkeypatch):
    """What every mode opens."""
    names = ClassNames((1, 7, 9), ("a", "b", "c"))
    hparams = EfficientDetHyperparameters(image_size=64)
    description = Description(
        model_name="efficientdet-d0", hparams=hparams.to_dict(), categories=names.to_categories(), weights="raw"
    )
    restored = Restored(detector=miniature_detector(), hparams=hparams, class_names=names, description=description)
    for module in (checkpoint_model, export_artifacts):
        monkeypatch.setattr(module, "load_model", lambda _: (restored, Runtime(precision="float32", use_xla=False)))
    return restored


def test_summary_of_d0_with_random_weights():
    with unfilled_weights():
        restored, runtime = load_model(replace(MODEL, overrides={"num_classes": 90}))
        shown = summary(restored)
    assert shown["trainable parameters"] == "3,880,067"  # reference/efficientdet.md 3.5
    parts = dict(part.rsplit("/ ", 1) for part in re.split(r", (?=\D)", shown["parameters by prefix"]))
    assert list(parts) == ["efficientnet-b0", "resample_p6", "fpn_cells", "class_net", "box_net"]
    assert sum(int(count.replace(",", "")) for count in parts.values()) == int(shown["parameters"].replace(",", ""))
    assert shown["anchors"] == "49,104"
    assert shown["classes"] == "90"
    assert shown["GFLOPs"].startswith("4.98 ")  # the paper: 2.5 billion multiply-adds
    assert runtime.precision == "float32"


@pytest.mark.parametrize(
    ("overrides", "names"), [({}, COCO_2017), ({"num_classes": 2}, ClassNames((1, 2), ("class 1", "class 2")))]
)
def test_random_weights_have_the_classes_of_coco_unless_told(overrides, names):
    with unfilled_weights():
        restored, _ = load_model(replace(MODEL, overrides={"image_size": 64, **overrides}))
    assert restored.class_names == names


def test_dry_run_writes_a_checkpoint_by_name(miniature, tmp_path, capsys):
    dry_run(MODEL, export_ckpt=str(tmp_path / "ckpt"))
    prefix = checkpoint_prefix(tmp_path)
    arrays, variables = read_arrays(prefix), named_variables(miniature.detector.network)
    assert arrays.keys() == variables.keys()
    for name, variable in variables.items():
        np.testing.assert_array_equal(arrays[name], np.asarray(variable))
    written = read_description(prefix)
    assert written.categories == miniature.class_names.to_categories()
    assert (written.model_name, written.weights) == ("efficientdet-d0", "raw")
    assert "720" in capsys.readouterr().out  # anchors


def test_an_export_is_timed(miniature, tmp_path):
    folder = str(tmp_path)
    SavedModel().write(miniature, tmp_path)
    report = benchmark(
        MODEL, InspectOptions(batch_size=2, bm_runs=2, bm_warm_up_runs=1, saved_model_dir=folder, dllogger_path="")
    )
    assert list(report["latency_ms"]) == ["end_to_end"]
    assert report["image_size"] == [64, 64]
    assert report["detections_per_image"] == 20


def test_masks_of_a_saved_model_are_pasted_by_the_rule_of_its_description(monkeypatch):
    outputs = {
        "boxes": np.float32([[3.3, 4.4, 20.2, 30.9]]),
        "scores": np.float32([0.9]),
        "classes": np.array([8]),
        "count": np.array(1),
        "masks": np.random.default_rng(0).random((1, 7, 7), np.float32),
    }
    for in_whole_pixels in (False, True):
        hparams = {"masks_in_whole_pixels": True} if in_whole_pixels else {}  # none: exported before there was the rule
        described = Description(model_name="a", hparams=hparams, categories=[{"id": 8, "name": "a"}], weights="raw")
        loaded = lambda _: {name: values[None] for name, values in outputs.items()}, described
        monkeypatch.setattr(export_module, "load_saved_model", lambda _, loaded=loaded: loaded)
        [rows] = SavedModel().open("folder").detect([np.zeros((30, 40, 3), np.uint8)])
        assert rows.masks.tolist() == pasted_run_lengths(
            outputs["masks"], outputs["boxes"], size=(30, 40), in_whole_pixels=in_whole_pixels
        )


def found(detections):
    """Return the rows of detections (box, score, category id)."""
    boxes, scores, ids = zip(*detections, strict=True) if detections else ((), (), ())
    return DetectionRows.of_image(
        np.array(boxes, np.float32).reshape(-1, 4), np.array(scores, np.float32), np.array(ids, int)
    )


BEST, SMALL, NOISE = ([0, 0, 9, 9], 0.5, 1), ([5, 5, 8, 8], 0.4, 2), ([30, 30, 40, 40], 0.2, 1)


@pytest.mark.parametrize(
    ("ours", "others", "pixels", "share"),
    [
        ([BEST, SMALL], [([5, 5, 8, 8.25], 0.4, 2), BEST], 0.5, 1),  # in any order
        ([BEST, SMALL], [([5, 5, 8, 8.25], 0.4, 2), BEST], 0.1, 0.5),
        ([BEST], [([0, 0, 9, 9], 0.5, 2)], 1, 0),  # another class
        ([BEST], [BEST, ([0, 0, 9, 9], 0.4, 1)], 1, 2 / 3),  # another number
        ([BEST], [], 1, 0),
        ([], [], 1, 1),
        ([BEST, SMALL, NOISE], [BEST, SMALL, ([60, 60, 70, 70], 0.2, 1)], 0.5, 4 / 6),
        ([BEST], [([0, 1, 9, 10], 0.5, 1)], 0.5, 0),
        ([BEST], [([0, 1, 9, 10], 0.5, 1)], None, 1),  # IoU 0.8
        ([BEST], [([0, 2, 9, 11], 0.5, 1)], None, 0),  # 0.64
    ],
)
def test_the_share_of_detections_that_agree(ours, others, pixels, share):
    assert compare_detections(found(ours), found(others), pixels=pixels).share == pytest.approx(share)


def test_noise_below_the_threshold_of_its_class_is_not_compared():
    """The last detection of each side is noise; the second of the others is below the threshold, but is found."""
    ours = found([BEST, ([5, 5, 8, 8], 0.31, 2), NOISE])
    others = found([BEST, ([5, 5, 8, 8.25], 0.29, 2), ([60, 60, 70, 70], 0.2, 1)])
    thresholds = ScoreThresholds(overall=0.4, by_category={2: 0.3}, source="")
    agreement = compare_detections(ours, others, pixels=0.5, thresholds=thresholds)
    assert agreement == pytest.approx(Agreement(2, 1.0, 0.02))
    assert compare_detections(found([]), ours, pixels=0.5, thresholds=thresholds)[:2] == (0, 0.0)
