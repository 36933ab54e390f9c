import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from miniature import miniature_detector
from other_family import OtherFamily
from PIL import Image

from dataset.class_names import ClassNames
from dataset.input.resize import letterbox
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime import Runtime
from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters
from efficientdet.inference.checkpoint_model import build_predict
from efficientdet.operations import benchmark_model as module
from efficientdet.operations.benchmark_model import (
    Run,
    benchmark,
    figures,
    latency_ms,
    log_values,
    measure_detector,
    random_inputs,
    timed_runs,
)
from efficientdet.options.export import InspectOptions
from model.multiply_adds import multiply_adds

ROOT = Path(__file__).parents[1]
MODEL = ModelConfig(ckpt_path=None, model_name="efficientdet-d0", model_name_given=False, overrides={})


@pytest.fixture
def miniature(monkeypatch):
    """The detector that `benchmark` opens."""
    detector = miniature_detector()
    names = ClassNames((1, 2, 3), ("a", "b", "c"))
    description = Description(model_name="efficientdet-d0", hparams={}, categories=names.to_categories(), weights="raw")
    restored = Restored(
        detector=detector,
        hparams=EfficientDetHyperparameters(image_size=64),
        class_names=names,
        description=description,
    )
    monkeypatch.setattr(module, "load_model", lambda _: (restored, Runtime(precision="float32", use_xla=False)))
    monkeypatch.setattr(module, "multiply_adds_per_second", lambda precision: 1e9)
    return detector


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        # 100 samples have 99 gaps: the 90th percentile lies 89.1 gaps from the first, at 1 + 89.1.
        (range(100, 0, -1), (50.5, 50.5, 90.1, 95.05, 99.01)),
        # 4 gaps: p90 lies 3.6 gaps from the first, 0.6 of the way from 1 to 11; the reference would say 1.
        ((1, 1, 11, 1, 1), (3, 1, 7, 9, 10.6)),
        ((0.25,), (0.25,) * 5),
    ],
)
def test_mean_and_percentiles_by_hand(seconds, expected):
    assert [*latency_ms([0.001 * value for value in seconds]).values()] == pytest.approx(expected)


def test_first_run_is_kept_apart_and_the_warm_up_is_dropped():
    runs = iter(Run({"end_to_end": float(number)}, 0.0) for number in range(100))
    first, timed = timed_runs(lambda: next(runs), warm_up_runs=10, runs=3)
    assert first.seconds == {"end_to_end": 0.0}
    assert [run.seconds["end_to_end"] for run in timed] == [10.0, 11.0, 12.0]


def test_figures_and_log_values_by_hand():
    first = Run({"preprocessing": 1.0, "end_to_end": 5.0}, 0.0)
    runs = [Run({"preprocessing": 0.5, "end_to_end": seconds}, found) for seconds, found in ((0.1, 10.0), (0.3, 20.0))]
    report = figures(first, runs, batch_size=4)
    assert report["images_per_s"] == pytest.approx({"preprocessing": 8.0, "end_to_end": 20.0})
    assert report["compile_s"] == pytest.approx({"end_to_end": 4.8})
    assert report["detections_per_image"] == 15.0
    assert log_values(report) == pytest.approx(
        {
            "inference_fps": 20.0,
            "inference_latency_ms": 200.0,
            "latency_avg": 0.2,
            "latency_90": 0.28,
            "latency_95": 0.29,
            "latency_99": 0.298,
        }
    )


def test_images_are_drawn_anew():
    inputs = random_inputs((64, 96), 2)
    (first, sizes, scales), (second, *_) = next(inputs), next(inputs)
    assert first.shape == (2, 64, 96, 3)
    assert first.dtype == np.uint8
    assert (first != second).mean() > 0.9
    assert (first[0] != first[1]).mean() > 0.9
    np.testing.assert_array_equal(sizes, [[64, 96]] * 2)
    np.testing.assert_array_equal(scales, np.ones((2, 2)))


def test_a_photograph_is_boxed_and_repeated(tmp_path):
    Image.new("RGB", (16, 32), (200, 200, 200)).save(tmp_path / "a.png")
    options = InspectOptions(batch_size=2, input_image=str(tmp_path / "a.png"))
    inputs, photographs = module._inputs(options, (64, 64), lambda: letterbox((64, 64)))
    assert [image.shape for image in next(photographs)] == [(32, 16, 3)] * 2
    for images, sizes, scales in (next(inputs), next(inputs)):
        np.testing.assert_array_equal(sizes, [[64, 32]] * 2)
        np.testing.assert_array_equal(scales, [[0.5, 0.5]] * 2)
        assert (images[:, :, :32] == 200).all()
        assert not images[:, :, 32:].any()


@pytest.mark.parametrize("runtime", ["keras", "onnxruntime"])
def test_a_detector_of_another_family_has_the_same_parts(runtime):
    predict = build_predict(OtherFamily(), compiled=False, runtime=runtime)
    batch = next(random_inputs((16, 24), 3))
    whole = predict(*batch)
    parts = predict.postprocess(predict.outputs(*batch[:2]), batch[1])
    np.testing.assert_allclose(np.asarray(parts.scores), np.asarray(whole.scores), rtol=1e-5)
    run = measure_detector(predict, random_inputs((16, 24), 3))
    assert list(run.seconds) == ["copy", "network", "post_processing", "end_to_end"]
    assert 0 < run.detections <= 5


def test_report_log_and_trace(miniature, tmp_path, capsys):
    report = benchmark(
        MODEL,
        InspectOptions(
            batch_size=2,
            bm_runs=3,
            bm_warm_up_runs=2,
            trace_filename=str(tmp_path / "trace"),
            dllogger_path=str(tmp_path / "time_log.txt"),
            output_json=str(tmp_path / "report.json"),
        ),
    )
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert set(report["latency_ms"]) == {"preprocessing", "copy", "network", "post_processing", "end_to_end"}
    assert report["latency_ms"]["end_to_end"]["p50"] <= report["latency_ms"]["end_to_end"]["p99"]
    assert report["detections_per_image"] == 20
    assert report["backend"] == "tensorflow"
    assert {"tensorflow", "keras", "numpy"} <= set(report["versions"])
    assert report["peak_host_memory_bytes"] > 2**20
    assert report["multiply_adds_per_image"] == multiply_adds(miniature.network)
    assert report["machine_multiply_adds_per_second"] == 1e9
    lines = [json.loads(line.removeprefix("DLLL ")) for line in (tmp_path / "time_log.txt").read_text().splitlines()]
    assert lines[-1]["type"] == "LOG"
    assert lines[-1]["data"] == log_values(report)
    assert {line["metric"]: line["metadata"]["unit"] for line in lines[:-1]} == {
        "inference_fps": "images/s",
        "inference_latency_ms": "ms",
        "latency_avg": "s",
        "latency_90": "s",
        "latency_95": "s",
        "latency_99": "s",
    }
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("p99", "end_to_end", "random pixels"))


@pytest.mark.parametrize(
    ("runtime", "int8_images", "wanted"),
    [
        ("onnxruntime", (), ("onnxruntime", "float32", "a processor", None)),
        ("openvino", ("a.jpg",), ("openvino", "int8", "a processor", None)),
        ("keras", (), ("tensorflow with XLA", "mixed_float16", "a GPU", 5)),
    ],
)
def test_report_names_what_really_ran(miniature, monkeypatch, runtime, int8_images, wanted):
    # As on a machine with a GPU, where Keras would compute in float16 and other runtimes do not look at it.
    accelerated = Runtime(precision="mixed_float16", use_xla=True)
    restored, _ = module.load_model(MODEL)
    predict = build_predict(restored.detector, compiled=False)
    monkeypatch.setattr(module, "load_model", lambda _: (restored, accelerated))
    monkeypatch.setattr(module, "build_predict", lambda *_, **__: predict)
    monkeypatch.setattr(module, "device_name", lambda: "a GPU")
    monkeypatch.setattr(module, "peak_device_memory", lambda: 5)
    monkeypatch.setattr(module, "processor_name", lambda: "a processor")
    report = benchmark(
        replace(MODEL, runtime=runtime, int8_images=int8_images),
        InspectOptions(bm_runs=1, bm_warm_up_runs=1, dllogger_path=""),
    )
    assert tuple(report[name] for name in ("runtime", "precision", "device", "peak_device_memory_bytes")) == wanted


_WITHOUT_TENSORFLOW = """
import importlib.abc, importlib.util, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorboard"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import efficientdet.exports.exported_file, efficientdet.run_log.journal
from efficientdet.operations import benchmark_model as measurements
from efficientdet.inference.checkpoint_model import build_predict
from miniature import miniature_detector
detector = miniature_detector()
inputs = measurements.random_inputs((64, 64), 2)
for use_xla in (True, False):  # in one program, and read on the host
    run = measurements.measure_detector(build_predict(detector, compiled=use_xla), inputs)
print(sorted(run.seconds), run.detections)
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_under_jax_with_tensorflow_absent():
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    done = subprocess.run([sys.executable, "-c", _WITHOUT_TENSORFLOW], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "['copy', 'end_to_end', 'network', 'post_processing'] 20.0"
