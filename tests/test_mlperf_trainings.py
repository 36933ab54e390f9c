"""Trainings of a miniature network under the families' names: MLPerf's checker, run as a program, accepts the logs."""

import json
import os
import sys
from pathlib import Path

import forked_programs
import pytest
from drawn_records import draw_records
from mlperf_checker import verdict

from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.plugins.loggers.mlperf import torch_parameters
from model.detection_model import named_variables

TESTS = Path(__file__).parent
MOST_SECONDS = 600


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """An SSD300's overfit to two images, as its rules require an AP of 0.23; a RetinaNet's of one epoch."""
    pytest.importorskip("mlperf_logging")
    folder = tmp_path_factory.mktemp("mlperf")
    drawn = draw_records(folder / "data", images={"train": 2})
    for_both = [
        f"--training_file_pattern={drawn.folder}/train-*",
        f"--val_file_pattern={drawn.folder}/train-*",
        "--batch_size=2",
        "--eval_batch_size=2",
        "--use_xla=False",
        "--loggers=json",
        "--calibration_images=0",
        "--checkpoint_period=9",
    ]
    trainings = {
        "ssd300-resnet34": [
            "--num_epochs=8",
            "--num_examples_per_epoch=80",
            "--eval_epochs=3,4,5,6,7,8",
            "--target_ap=0.23",
            "--lr=0.006",
            "--warmup_epochs=0.1",
            "--hparams=image_size=257,optimizer=adam",
        ],
        "retinanet-resnext50": [
            "--num_epochs=2",
            "--eval_period=1",
            "--target_ap=0.34",
            "--hparams=image_size=64",
            "--mlperf_submission=submission_org=we,submission_platform=1 x miniature",
        ],
    }
    programs = [
        [
            "train",
            f"--model_name={model}",
            f"--model_dir={folder}/{model}",
            f"--mlperf_log={folder}/{model}.log",
            *for_both,
            *flags,
        ]
        for model, flags in trainings.items()
    ]
    done = forked_programs.run(
        [sys.executable, TESTS / "miniature_programs.py", json.dumps(programs)],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        timeout=MOST_SECONDS,
        cwd=TESTS.parent,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {model: folder / f"{model}.log" for model in trainings}


def values_of(path):
    lines = [json.loads(line.split(":::MLLOG ")[1]) for line in path.read_text().splitlines()]
    return lines, {line["key"]: line["value"] for line in lines}


@pytest.mark.slow
def test_an_ssd300s_log_passes_the_rules_of_0_7(logs):
    path = logs["ssd300-resnet34"]
    assert verdict(path, "0.7.0") == 0
    lines, values = values_of(path)
    wanted = {
        "submission_benchmark": "ssd",
        "submission_division": "open",
        "model_bn_span": 2,
        "max_samples": 1,
        "opt_learning_rate_decay_boundary_epochs": [40.0, 50.0],
        "opt_learning_rate_warmup_factor": 0.0,
        "opt_learning_rate_warmup_steps": 4,
        "cache_clear": False,
    }
    assert {key: values[key] for key in wanted} == wanted
    evaluated = [line["metadata"]["epoch_num"] for line in lines if line["key"] == "eval_accuracy"]
    assert evaluated == list(range(3, evaluated[-1] + 1))
    assert values["eval_accuracy"] >= 0.23
    assert lines[-1]["metadata"]["status"] == "success"
    start, stop = (next(line["time_ms"] for line in lines if line["key"] == key) for key in ("run_start", "run_stop"))
    log = (path.parent / "ssd300-resnet34" / "time_log.txt").read_text().splitlines()
    [minutes] = [
        entry["data"]["time_to_target"]
        for line in log
        if "time_to_target" in (entry := json.loads(line.removeprefix("DLLL "))).get("data", {})
    ]
    assert 0 < minutes <= (stop - start) / 60_000


@pytest.mark.slow
def test_a_retinanets_log_passes_the_rules_of_2_1(logs):
    path = logs["retinanet-resnext50"]
    assert verdict(path, "2.1.0") == 0
    lines, values = values_of(path)
    wanted = {
        "submission_benchmark": "ssd",
        "submission_org": "we",
        "submission_platform": "1 x miniature",
        "opt_name": "adam",
        "opt_base_learning_rate": 1e-4,
        "opt_weight_decay": 0.0,
        "train_samples": 2,
        "eval_samples": 2,
    }
    assert {key: values[key] for key in wanted} == wanted
    assert values["opt_learning_rate_warmup_factor"] == pytest.approx(1e-3)
    assert [line["metadata"]["epoch_num"] for line in lines if line["key"] == "eval_accuracy"] == [1, 2]
    assert lines[-1]["metadata"]["status"] == "aborted"  # the target was not reached
    assert verdict(path, "0.7.0") == 1  # other rules are reported


def test_the_tensors_of_the_network_are_those_of_the_rules(golden_folder):
    """ResNet-50's have the same names as ResNeXt-50's."""
    detector = build_detector(hyperparameters_of("retinanet-resnet50", {"image_size": 64}), num_classes=2)
    shapes = json.loads(
        (golden_folder / "families" / "names" / "mlcommons_retinanet_resnext50_32x4d_fpn.json").read_text()
    )
    norms = {name.rsplit(".", 1)[0] for name in shapes if name.endswith(".running_var")}
    wanted = sorted(f"module.{name}" for name in shapes if name.rsplit(".", 1)[0] not in norms)
    assert len(wanted) == 89
    assert torch_parameters(named_variables(detector.network)) == wanted
