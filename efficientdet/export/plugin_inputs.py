"""What a file for TensorRT hands to its plugin, beside what Keras makes of the same images: no TensorRT is needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from keras import ops

from efficientdet.artifacts.onnx_efficientnms import without_plugin
from efficientdet.checkpoints.restore import Restored
from efficientdet.export.inspection import Agreement
from efficientdet.inference.exported_network import ExportedNetwork, copied


def compare_plugin_inputs(restored: Restored, path: Path, images: Sequence[np.ndarray], *, pixels: float) -> list[Agreement]:
    """Of each image every anchor's decoded box and its scores."""
    detector, config = restored.detector, restored.detector.config.suppression
    network = ExportedNetwork(without_plugin(onnx.load(path)).SerializeToString(), runtime="onnxruntime")
    agreements = []
    for image in images:
        boxed, size, _ = (np.asarray(part)[None] for part in restored.resize(image))
        [(boxes, scores)] = network(boxed, size, copied)
        logits, deltas = detector.outputs(boxed, size)
        wanted = np.asarray(config.box_coder.decode(deltas, ops.convert_to_tensor(detector.anchors)))[0]
        if config.clip:
            wanted = np.clip(wanted, 0, np.tile(size[0], 2).astype(np.float32))
        if config.scores == "sigmoid":
            scores, probabilities = (np.asarray(ops.sigmoid(values)) for values in (scores, logits[0]))
        else:
            probabilities = np.asarray(ops.softmax(logits, axis=-1))[0]
            probabilities = probabilities[:, 1:] if config.scores == "softmax, background first" else probabilities[:, :-1]
        distances = np.abs(boxes - wanted).max(axis=-1)
        agreements.append(Agreement(len(boxes), float((distances <= pixels).mean()),
                                    float(np.abs(scores - probabilities).max()), float(distances.max())))
    return agreements
