"""Inspection of a detector: summary, and export to a checkpoint, SavedModel or ONNX file."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from efficientdet.checkpoints.checkpoint import write_arrays
from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.checkpoint_model import load_model
from efficientdet.inference.export_formats import export_formats
from efficientdet.inference.runtimes import Network, copied
from model.detection_model import named_variables
from model.multiply_adds import multiply_adds
from object_detection.geometry.box_geometry import pairwise_iou

_LARGEST_NETWORK_DIFFERENCE = 1e-3
_LEAST_AGREEMENT = 0.95  # rounding may change the order of near-equal scores, and so the last detections
SAME_OBJECT_IOU = 0.75  # int8 rounding moves sides; boxes above it are one object's
_TOLERANCES = {"float32": (1e-3, 0.5), "mixed_float16": (2e-2, 4.0), "mixed_bfloat16": (5e-2, 8.0)}  # score, pixels


class Agreement(NamedTuple):
    """Agreement of two lists of detections of an image."""

    compared: int
    share: float  # fraction of detections of both lists with a partner in the other
    score_difference: float  # largest difference between detections of equal rank
    box_difference: float = 0.0  # largest difference of a side between partners in pixels


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


def export(config: ModelConfig, folder: str, *, input_image: str | None) -> None:
    """Write a SavedModel, load it and compare its detections with those of the detector in memory.

    Compares on `input_image`, else on random pixels.

    Raises:
        InputError: for backends other than TensorFlow.
        RuntimeError: the detections differ.
    """
    from dataset.files.image_files import read_image
    from efficientdet.exports.saved_model import export_saved_model, open_saved_model
    from efficientdet.inference.checkpoint_model import checkpoint_detector

    restored, runtime = load_model(config)
    height, width = restored.detector.image_size
    noise = np.random.default_rng(0).integers(0, 256, (height * 3 // 4, width * 5 // 4, 3), np.uint8)
    image = read_image(input_image) if input_image else noise
    export_saved_model(restored.detector, folder, description=restored.description, resize=restored.resize)
    print(f"wrote {folder}")
    detect = checkpoint_detector(restored, batch_size=1, compiled=False).detect
    reloaded = open_saved_model(folder).detect
    score_tolerance, pixels = _TOLERANCES[runtime.precision]
    agreement = compare_detections(detect([image])[0], reloaded([image])[0], pixels=pixels)
    print(
        f"read back: {agreement.share:.1%} of {agreement.compared} detections agree within {pixels} pixels; "
        f"largest difference of scores {agreement.score_difference:.2g}"
    )
    if agreement.share < _LEAST_AGREEMENT or agreement.score_difference > score_tolerance:
        raise RuntimeError(f"{folder}: the SavedModel has other detections than the detector in memory")
    if not agreement.compared:
        print("no detections to compare in this image; use --input_image=FILE with an image of objects")


def export_network(config: ModelConfig, path: str) -> None:
    """Export the network to an ONNX file and compare its outputs in ONNX Runtime with those of the network.

    Raises:
        RuntimeError: they differ.
    """
    restored, _ = load_model(config)
    detector = restored.detector
    export_formats()["onnx-raw"].write(restored, Path(path))
    print(f"wrote {path}")
    height, width = detector.image_size
    images = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), np.uint8)
    sizes = np.array([[height, width * 3 // 4]], np.int32)
    [actual] = Network(Path(path).read_bytes(), runtime="onnxruntime")(images, sizes, copied)
    outputs = keras.tree.flatten(detector.outputs(*map(keras.ops.convert_to_tensor, (images, sizes))))
    expected = [np.asarray(output)[0] for output in outputs]
    difference = max(  # the file of a dense detector has one more output, the best logits
        np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())
        for ours, theirs in zip(actual[: len(expected)], expected, strict=True)
    )
    print(f"read back: outputs agree within {difference:.2g} of the largest")
    if not difference < _LARGEST_NETWORK_DIFFERENCE:
        raise RuntimeError(f"{path}: the file's network has other outputs than the detector in memory")


def compare_detections(ours, others, *, pixels: float | None, thresholds: ScoreThresholds | None = None) -> Agreement:
    """Compare the detections of an image with others, ignoring those with scores below the thresholds.

    A detection agrees if it has a partner among the others, of its class and any score, with all four sides within
    `pixels`, or, where these are None, with an IoU of at least SAME_OBJECT_IOU.
    """
    shown, others_shown = (
        np.ones(len(rows.scores), bool) if thresholds is None else rows.scores >= thresholds.of(rows.category_ids)
        for rows in (ours, others)
    )
    count, total = int(shown.sum()), int(shown.sum() + others_shown.sum())
    if not total:
        return Agreement(0, 1.0, 0.0)
    distances = np.abs(ours.boxes[:, None] - others.boxes[None]).max(axis=-1)  # [N, N']
    near = _same_object(ours.boxes, others.boxes) if pixels is None else distances <= pixels
    partners = near & (ours.category_ids[:, None] == others.category_ids[None])
    pairs = {}
    for row, others_near in enumerate(partners):  # the best score first
        if candidates := [other for other in np.flatnonzero(others_near).tolist() if other not in pairs]:
            pairs[min(candidates, key=distances[row].__getitem__)] = row
    matched = [(row, other) for other, row in pairs.items()]
    share = sum(int(shown[row]) + int(others_shown[other]) for row, other in matched) / total
    common = min(len(ours.scores), len(others.scores), max(count, int(others_shown.sum())))
    difference = np.abs(ours.scores[:common] - others.scores[:common]).max(initial=0.0)
    return Agreement(count, share, float(difference), max((float(distances[pair]) for pair in matched), default=0.0))


def _same_object(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray(pairwise_iou(boxes, others)) >= SAME_OBJECT_IOU


def compare_plugin_inputs(
    restored: Restored, path: Path, images: Sequence[np.ndarray], *, pixels: float
) -> list[Agreement]:
    """Compare the inputs of the plugin in a file for TensorRT with those computed by Keras, without TensorRT.

    For each image these are the decoded box and the scores of every anchor.
    """
    import onnx

    from efficientdet.onnx_translation.efficientnms import without_plugin

    detector, model = restored.detector, onnx.load(path)
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    activated = any(one.name == "score_activation" and one.i for one in attributes)  # the plugin applies the sigmoid
    network = Network(without_plugin(model).SerializeToString(), runtime="onnxruntime")
    agreements = []
    for image in images:
        boxed, size, _ = (np.asarray(part)[None] for part in restored.resize(image))
        [(boxes, scores)] = network(boxed, size, copied)
        inputs = detector.outputs(boxed, size), keras.ops.convert_to_tensor(size)
        expected, probabilities = (
            np.asarray(values)[0] for values in detector.postprocessing.boxes_and_probabilities(*inputs)
        )
        if activated:
            scores = np.asarray(keras.ops.sigmoid(scores))
        distances = np.abs(boxes - expected).max(axis=-1)
        agreements.append(
            Agreement(
                len(boxes),
                float((distances <= pixels).mean()),
                float(np.abs(scores - probabilities).max()),
                float(distances.max()),
            )
        )
    return agreements
