"""What a file for TensorRT hands to its plugin, beside what Keras makes of the same images: no TensorRT is needed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from keras import ops

from efficientdet.artifacts.onnx_efficientnms import without_plugin
from efficientdet.checkpoints.restore import Restored
from efficientdet.exports.inspection import Agreement
from efficientdet.inference.exported_network import ExportedNetwork, copied


def compare_plugin_inputs(restored: Restored, path: Path, images: Sequence[np.ndarray], *, pixels: float) -> list[Agreement]:
    """Of each image every anchor's decoded box and its scores."""
    detector, model = restored.detector, onnx.load(path)
    activated = any(attribute.name == "score_activation" and attribute.i for node in model.graph.node
                    for attribute in node.attribute)  # the plugin applies the sigmoid
    network = ExportedNetwork(without_plugin(model).SerializeToString(), runtime="onnxruntime")
    agreements = []
    for image in images:
        boxed, size, _ = (np.asarray(part)[None] for part in restored.resize(image))
        [(boxes, scores)] = network(boxed, size, copied)
        wanted, probabilities = (np.asarray(values)[0] for values in detector.boxes_and_probabilities(
            detector.outputs(boxed, size), ops.convert_to_tensor(size)))
        if activated:
            scores = np.asarray(ops.sigmoid(scores))
        distances = np.abs(boxes - wanted).max(axis=-1)
        agreements.append(Agreement(len(boxes), float((distances <= pixels).mean()),
                                    float(np.abs(scores - probabilities).max()), float(distances.max())))
    return agreements
