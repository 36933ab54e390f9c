"""Agreement of the detections of exported files with those of their checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np

from efficientdet.checkpoints.restore import Restored
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.inference.runtimes import Network, copied
from object_detection.geometry.box_geometry import pairwise_iou

SAME_OBJECT_IOU = 0.75  # int8 rounding moves sides; boxes above it are one object's


class Agreement(NamedTuple):
    """Agreement of two lists of detections of an image."""

    compared: int
    share: float  # fraction of detections of both lists with a partner in the other
    score_difference: float  # largest difference between detections of equal rank
    box_difference: float = 0.0  # largest difference of a side between partners in pixels


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
