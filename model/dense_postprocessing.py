"""Post-processing of dense outputs: on the backend, in NumPy and in ONNX."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from model.postprocessing import Postprocessing
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.onnx_nodes import Graph, Output
from object_detection.structures import Detections, Tensor
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs
from program_support.errors import InputError
from program_support.plugins import load_plugin


class DensePostprocessing(Postprocessing):
    """Post-processing of class logits [B, A, K] and box deltas [B, A, 4] at A anchors."""

    detects_on_host = True

    def __init__(
        self,
        config: SuppressionConfig,
        anchors: np.ndarray,
        level_sizes: Sequence[int],
        *,
        num_logits: int,
        image_size: tuple[int, int],
    ):
        """Create post-processing for K = num_logits logits per anchor, including the background."""
        self._config, self._anchors, self._level_sizes, self._num_logits = config, anchors, level_sizes, num_logits
        self._image_size = image_size

    def detections(self, outputs: tuple[Tensor, Tensor], sizes: Tensor) -> Detections[Tensor]:
        """Return detections by the backend, see `DetectionModel.detections`."""
        return detections_from_outputs(
            *outputs,
            ops.convert_to_tensor(self._anchors),
            config=self._config,
            level_sizes=self._level_sizes,
            clip_to=sizes,
            within=sizes,
        )

    def host_outputs(self, outputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return class logits [B, A, K], box deltas [B, A, 4] and the highest logit of each anchor [B, A]."""
        return *outputs, ops.max(outputs[0], axis=-1)

    def detections_on_host(self, outputs: Sequence[np.ndarray], size: np.ndarray) -> Detections[np.ndarray]:
        """Return one image's detections by NumPy, see `Postprocessing.detections_on_host`.

        outputs: class logits, box deltas [A, 4] and the highest logit of each anchor.
        """
        return detections_on_host(
            self._network_outputs(outputs),
            self._anchors,
            config=self._config,
            level_sizes=self._level_sizes,
            clip_to=size,
            within=size,
        )

    def onnx_detections(self, graph: Graph, tensors: Sequence[str], sizes: str) -> dict[str, Output]:
        """Add post-processing to an ONNX graph, see `Postprocessing.onnx_detections`."""
        logits, deltas = tensors
        boxes, scores, classes = load_plugin("efficientdet.onnx", "suppression")(
            graph,
            logits,
            deltas,
            sizes,
            anchors=self._anchors,
            classes=self._num_logits,
            config=self._config,
            level_sizes=self._level_sizes,
        )
        slots = self._config.max_detections
        return {
            "boxes": Output(boxes, "float32", (slots, 4)),
            "scores": Output(scores, "float32", (slots,)),
            "classes": Output(classes, "int32", (slots,)),
        }

    def onnx_outputs(self, graph: Graph, tensors: Sequence[str]) -> dict[str, Output]:
        """Return the outputs that `detections_on_host` uses.

        A file for ONNX Runtime keeps the logits of a cell's anchors in one row, the same values in the same order,
        because a Reshape at the end would copy them.
        """
        (logits, deltas), anchors = tensors, len(self._anchors)
        best = graph.add("ReduceMax", [logits, np.array([2])], name="best_logits", keepdims=0)
        shape = (anchors, self._num_logits)
        if graph.for_onnxruntime and logits in graph.cells:
            logits, channels = graph.cells[logits]
            shape = (anchors * self._num_logits // channels, channels)
        return {
            "class_logits": Output(logits, "float32", shape),
            "box_deltas": Output(deltas, "float32", (anchors, 4)),
            "best_logits": Output(best, "float32", (anchors,)),
        }

    def litert_operator(self) -> tuple[np.ndarray, dict[str, Any]]:
        """Return anchors and attributes of `TFLite_Detection_PostProcess`, see `Postprocessing.litert_operator`."""
        config, coder = self._config, self._config.box_coder
        if coder.last_pixel or not isinstance(coder, FasterRcnnBoxCoder):
            raise InputError(
                "TFLite_Detection_PostProcess measures boxes from corner to corner, but the boxes of this detector "
                "include their last pixel; use --formats=litert-int8"
            )
        size = np.array(self._image_size)
        low, high = self._anchors[:, :2] / size, self._anchors[:, 2:] / size
        anchors = np.concatenate([(low + high) / 2, high - low], axis=1).astype(np.float32)
        scales = dict(zip(("y_scale", "x_scale", "h_scale", "w_scale"), map(float, coder.weights), strict=True))
        return anchors, {
            "max_detections": config.max_detections,
            "max_classes_per_detection": 1,
            "detections_per_class": config.max_detections,
            # Class-agnostic: suppression per class loses a class with two threads (tensorflow/tensorflow#56058)
            "use_regular_nms": False,
            "nms_score_threshold": float(config.score_threshold),
            "nms_iou_threshold": 1.0 if config.method == "none" else float(config.iou_threshold),
            "num_classes": self._num_logits - (config.scores == "softmax"),  # the background's score is the first
            **scales,
        }

    def probabilities(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        """Return the probabilities of the logits, [B, A, K], including the background's."""
        logits = outputs[0]
        return ops.sigmoid(logits) if self._config.scores == "sigmoid" else ops.softmax(logits, axis=-1)

    def _network_outputs(self, outputs: Sequence[np.ndarray]) -> NetworkOutputs:
        logits, deltas, best_logits = outputs
        return NetworkOutputs(logits.reshape(len(best_logits), -1), deltas, best_logits)
