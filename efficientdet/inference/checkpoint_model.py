"""Models of checkpoints, or with random weights, run by Keras or with their network in another runtime."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dataset.class_names import COCO_2017
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.checkpoints.checkpoint_classes import numbered_classes
from efficientdet.checkpoints.restore import Restored, restore_detector
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import replicate
from efficientdet.devices.runtime import Runtime, start_runtime
from efficientdet.families.hyperparameters import Hyperparameters, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.inference.calibration import calibration_of_files
from efficientdet.inference.detect import Detector
from efficientdet.inference.predictor import host_predictor, keras_predictor
from efficientdet.inference.runtimes import Network, Predictor
from model import tensorflow_cpu
from model.detection_model import DetectionModel, named_variables
from model.multiply_adds import multiply_adds
from program_support.plugins import load_plugin
from program_support.processor import sums_of_bytes_saturate

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


def load_model(config: ModelConfig, *, owns_process: bool = True, silent: bool = False) -> tuple[Restored, Runtime]:
    """Start the runtime and return the detector of a checkpoint, or one with random weights.

    owns_process: see `start_runtime`. silent: print no line on the origin of class names.
    """
    runtime = start_runtime(
        precision=config.precision,
        amp=config.amp,
        use_xla=config.use_xla,
        seed=0 if owns_process else None,
        owns_process=owns_process,
    )
    if config.ckpt_path:
        restored = restore_detector(config, precision=runtime.precision)
        for line in () if silent else restored.notes:
            print(line)
        return restored, runtime
    hparams = with_overrides(hyperparameters_of(config.model_name, {}), dict(config.overrides))
    return _with_random_weights(hparams, precision=runtime.precision), runtime


def checkpoint_detector(
    restored: Restored,
    *,
    batch_size: int = 1,
    compiled: bool = False,
    runtime: str = "keras",
    int8_images: tuple[str, ...] = (),
) -> Detector:
    """Return the detector of a restored model for up to `batch_size` images at a time, resized by its rule."""
    predict = build_predict(
        restored.detector, compiled=compiled, runtime=runtime, int8_images=int8_images, resize=restored.resize
    )
    return Detector.resizing(predict, resize=restored.resize, description=restored.description, batch_size=batch_size)


def open_checkpoint(config: ModelConfig, *, batch_size: int, owns_process: bool = True, once: bool = False) -> Detector:
    """Open a checkpoint for up to `batch_size` images at a time; see `open_model`."""
    restored, runtime = load_model(config, owns_process=owns_process)
    replicate(restored.detector.network, batch_size=batch_size)
    opened = checkpoint_detector(
        restored,
        batch_size=batch_size,
        compiled=runtime.use_xla,
        runtime=config.runtime,
        int8_images=config.int8_images,
    )
    on_cpu = restored.detector.postprocessing.detects_on_host and not runtime.use_xla and tensorflow_cpu.applies()
    if once and opened.tiling is None and config.runtime == "keras" and on_cpu:
        return replace(opened, detect=tensorflow_cpu.run_eagerly(opened.detect))
    return opened


def build_predict(
    detector: DetectionModel,
    *,
    compiled: bool,
    runtime: str = "keras",
    int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> Predictor:
    """Return a detector with the current weights as constants, run by Keras or in another runtime.

    They are quantized to int8 if there are `int8_images`, which `resize` converts to inputs.
    """
    if runtime == "keras":
        return keras_predictor(detector, compiled=compiled, constant_weights=True)
    return host_predictor(detector, exported_network(detector, runtime=runtime, int8_images=int8_images, resize=resize))


def exported_network(
    detector: DetectionModel, *, runtime: str, int8_images: Sequence[str] = (), resize: "ResizeRule | None" = None
) -> Network:
    """Export the detector's current network to another runtime; in int8 if there are calibration images."""
    model = load_plugin("efficientdet.onnx", "model")(
        detector, for_onnxruntime=runtime == "onnxruntime" and not int8_images
    )
    if int8_images:
        assert resize is not None
        quantized = load_plugin("efficientdet.onnx", "quantization")
        model = quantized(model, calibration_of_files(int8_images).inputs(resize), narrow=sums_of_bytes_saturate())
    return Network(model.SerializeToString(), runtime=runtime)


def dry_run(config: ModelConfig, *, export_ckpt: str | None) -> None:
    """Build the detector, print its summary and optionally write its weights."""
    restored, runtime = load_model(config)
    for name, value in (summary(restored) | {"precision": runtime.precision}).items():
        print(f"{name:<22} {value}")
    if export_ckpt:
        arrays = {name: np.asarray(variable) for name, variable in named_variables(restored.detector.network).items()}
        write_arrays(export_ckpt, arrays, restored.description)
        print(f"wrote {export_ckpt}: {len(arrays)} arrays")


def summary(restored: Restored) -> dict[str, str]:
    """Return the properties of a detector as text."""
    network = restored.detector.network
    by_prefix = Counter[str]()
    for name, variable in named_variables(network).items():
        by_prefix[name.split("/")[0]] += math.prod(variable.shape)
    height, width = restored.detector.image_size
    anchors = {"anchors": f"{len(restored.detector.anchors):,}"} if restored.detector.anchors is not None else {}
    return {
        "model": str(restored.hparams.name),
        "input": f"{height} x {width} pixels (height x width)",
        "classes": str(len(restored.class_names)),
        "parameters": f"{by_prefix.total():,}",
        "parameters by prefix": ", ".join(f"{name}/ {count:,}" for name, count in by_prefix.items()),
        "trainable parameters": f"{sum(math.prod(variable.shape) for variable in network.trainable_variables):,}",
        **anchors,
        "GFLOPs": f"{2 * multiply_adds(network) / 1e9:.3g} per image (a multiply-add counts as two)",
    }


def _with_random_weights(hparams: Hyperparameters, *, precision: str) -> Restored:
    number = hparams.num_classes
    names = COCO_2017 if number in (None, len(COCO_2017)) else numbered_classes(number)
    detector = build_detector(hparams, num_classes=len(names), precision=precision)
    description = Description(
        model_name=hparams.model_name, hparams=hparams.to_dict(), categories=names.to_categories(), weights="raw"
    )
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description)
