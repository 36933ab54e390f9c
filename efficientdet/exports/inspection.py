"""Inspection of a detector: summary, and export to a checkpoint or to a file that is compared with the detector."""

import math
from collections import Counter
from pathlib import Path

import numpy as np

from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.exports.agreement import compare_detections
from efficientdet.exports.formats import export_formats
from efficientdet.inference.checkpoint_model import checkpoint_detector, load_model
from model.detection_model import named_variables
from model.multiply_adds import multiply_adds

_LEAST_AGREEMENT = 0.95  # rounding may change the order of near-equal scores, and so the last detections
_TOLERANCES = {"float32": (1e-3, 0.5), "mixed_float16": (2e-2, 4.0), "mixed_bfloat16": (5e-2, 8.0)}  # score, pixels


def dry_run(config: ModelConfig, *, export_ckpt: str | None) -> None:
    """Build the detector, print its summary and optionally write its weights."""
    restored, runtime = load_model(config)
    for name, value in summary(restored).items():
        print(f"{name:<22} {value}")
    print(f"{'precision':<22} {runtime.precision}")
    if export_ckpt:
        arrays = {name: np.asarray(variable) for name, variable in named_variables(restored.detector.network).items()}
        write_arrays(export_ckpt, arrays, restored.description)
        print(f"wrote {export_ckpt}: {len(arrays)} arrays")


def summary(restored: Restored) -> dict[str, str]:
    """Return the properties of a detector as text."""
    network = restored.detector.network
    trainable = sum(math.prod(variable.shape) for variable in network.trainable_variables)
    parts = Counter[str]()
    for name, variable in named_variables(network).items():
        parts[name.split("/")[0]] += math.prod(variable.shape)
    height, width = restored.detector.image_size
    anchors = {"anchors": f"{len(restored.detector.anchors):,}"} if restored.detector.anchors is not None else {}
    return {
        "model": str(restored.hparams.name),
        "input": f"{height} x {width} pixels (height x width)",
        "classes": str(len(restored.class_names)),
        "parameters": f"{parts.total():,}",
        "parameters by prefix": ", ".join(f"{name}/ {count:,}" for name, count in parts.items()),
        "trainable parameters": f"{trainable:,}",
        **anchors,
        "GFLOPs": f"{2 * multiply_adds(network) / 1e9:.3g} per image (a multiply-add counts as two)",
    }


def export(config: ModelConfig, name: str, path: Path, *, input_image: str | None) -> None:
    """Write a file or folder of a format, open it and compare its detections with those of the detector in memory.

    Compares on `input_image`, else on random pixels.

    Raises:
        InputError: the backend or the format cannot express the detector.
        RuntimeError: the detections differ.
    """
    from dataset.files.image_files import read_image

    restored, runtime = load_model(config)
    height, width = restored.detector.image_size
    noise = np.random.default_rng(0).integers(0, 256, (height * 3 // 4, width * 5 // 4, 3), np.uint8)
    image = read_image(input_image) if input_image else noise
    form = export_formats()[name]
    form.write(restored, path)
    print(f"wrote {path}")
    detect = checkpoint_detector(restored).detect
    reloaded = form.open_for(restored, path)
    assert reloaded is not None  # the formats that an inspection writes run here
    score_tolerance, pixels = _TOLERANCES[runtime.precision]
    agreement = compare_detections(detect([image])[0], reloaded([image])[0], pixels=pixels)
    print(
        f"read back: {agreement.share:.1%} of {agreement.compared} detections agree within {pixels} pixels; "
        f"largest difference of scores {agreement.score_difference:.2g}"
    )
    if agreement.share < _LEAST_AGREEMENT or agreement.score_difference > score_tolerance:
        raise RuntimeError(f"{path}: has other detections than the detector in memory")
    if not agreement.compared:
        print("no detections to compare in this image; use --input_image=FILE with an image of objects")
