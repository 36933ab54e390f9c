"""Each script of benchmarks/ once, briefly: that it runs and says what it should; never how long it takes."""

import json
import os
import re
import sys
from pathlib import Path

import forked_programs
import onnx
import pytest
from drawn_records import draw_records
from onnx import TensorProto, helper

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.append(str(REPOSITORY / "benchmarks"))

from inference_table import table  # noqa: E402

# The network with few and narrow layers
TRAINING_STEP = ("../tests/small_families.py", str(REPOSITORY / "benchmarks" / "training_step.py"))
SMALL = ("--model=retinanet-resnet18", "--size=64", "--batch_size=2", "--steps=1")


def run(script, *flags, backend="tensorflow"):
    command = [sys.executable, str(REPOSITORY / "benchmarks" / script), *flags]
    env = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
        "KERAS_BACKEND": backend,
    }
    done = forked_programs.run(command, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_evaluation():
    shown = run("evaluation.py", "--images=30", "--runs=1")
    assert "30 images, 3000 detections" in shown
    assert float(re.search(r"largest difference to pycocotools ([^\s;]+)", shown).group(1)) == 0.0
    assert 0.02 < float(re.search(r"AP (\S+);", shown).group(1)) < 0.5


def test_input(tmp_path):
    drawn = draw_records(tmp_path, images={"train": 16}, side=64)
    (drawn.folder / "train.classes.json").unlink()  # the records name their classes, too
    shown = run("input.py", f"--records={drawn.folder}/train-*.tfrecord", "--size=128", "--seconds=0.2", "--runs=1")
    assert [line.split("  ")[0] for line in shown.splitlines()[:2]] == ["decoding only", "ours, images and boxes"]
    assert re.search(r"^ours: \d\.\d\d of decoding$", shown, re.MULTILINE)


def test_training_step():
    shown = run(*TRAINING_STEP, *SMALL, "--precision=mixed_bfloat16")
    assert re.findall(r"^(\w[\w ]+, [\w ]+\w) +\d+\.\d\d images/s, \d", shown, re.MULTILINE) == [
        "complete step, 8 boxes",
        "complete step, 40 boxes",
    ]
    assert "peak memory" in shown


def test_training_step_under_jax():
    pytest.importorskip("jax")
    shown = run(*TRAINING_STEP, *SMALL, "--boxes", "3", backend="jax")
    assert len(re.findall(r"\d images/s, \d", shown)) == 1
    assert ", jax, float32, batch 2 at 64 px" in shown


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_exported_inference_beside_a_peer(tmp_path, runtime):
    pytest.importorskip(runtime)
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, 4, 4]) for name in "xy"]
    peer = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "peer", shapes[:1], shapes[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    onnx.save(peer, str(tmp_path / "peer.onnx"))
    shown = run(
        "exported_inference.py", f"--runtime={runtime}", "--size=64", "--turns=1", f"--peer={tmp_path}/peer.onnx"
    )
    medians = dict(re.findall(r"^(\w+)[,.].*median +(\d+\.\d) ms", shown, re.MULTILINE))
    assert medians.keys() == {"ours", "peer"}
    assert f"{runtime}, batch 1 at 64 px, python" in shown


def inference_report(batch_size, milliseconds, **changes):
    latency = dict.fromkeys(("mean", "p50", "p90", "p95", "p99"), milliseconds)
    return {
        "batch_size": batch_size,
        "latency_ms": {"end_to_end": latency, "network": latency},
        "versions": {"keras": "3"},
        "model": "efficientdet-d0",
        "image_size": [512, 512],
        "device": "card",
        "runtime": "jax",
        "precision": "mixed_float16",
        "multiply_adds_per_image": 2.49e9,
        **changes,
    }


def test_inference_table(tmp_path):
    """Two sizes, of which the reference publishes one."""
    for number, report in enumerate([inference_report(3, 60.0), inference_report(1, 20.0)]):
        (tmp_path / f"{number}.json").write_text(json.dumps(report))
    shown = run("inference_table.py", f"{tmp_path}/0.json", f"{tmp_path}/1.json").splitlines()
    assert [line.split("|")[1:3] for line in shown[2:4]] == [[" 1 ", " 50.0 "], [" 3 ", " 50.0 "]]
    assert shown[2].endswith("| 20.00 | 38 | 1.32 |")
    assert shown[3].endswith("| 60.00 | - | - |")
    assert table([inference_report(1, 20.0, precision="float32")])[2].endswith("| 20.00 | 38.33 | 1.30 |")


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "efficientdet-lite0"},
        {"image_size": [320, 320]},
        {"precision": "int8"},
        {"precision": "mixed_bfloat16"},
        {"multiply_adds_per_image": 1e9},  # of other hyperparameters
    ],
)
def test_only_equal_work_is_compared(changes):
    assert table([inference_report(1, 20.0, **changes)])[2].endswith("| 20.00 | - | - |")
