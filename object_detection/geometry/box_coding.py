"""Box encoding as offsets from anchors, and decoding.

For `FasterRcnnBoxCoder`:

t_y = (y - y_a) / h_a, t_x = (x - x_a) / w_a, t_h = ln(h / h_a), t_w = ln(w / w_a), with the centers y, x; some
detectors multiply these by weights.
"""

import math
from dataclasses import dataclass

import numpy as np
from keras import ops

from object_detection.onnx_nodes import Graph
from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-8  # pixels; keeps the logarithm of an empty box finite
LARGEST_LOG_SIZE = math.log(1000 / 16)  # torchvision's limit: a side is at most 62.5 times its anchor's


class BoxCoder:
    """Interface of box coders: encoding of boxes as offsets from anchors, and decoding on each runtime."""

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return the offsets of boxes from anchors. [..., 4], [..., 4] -> [..., 4], finite for empty boxes."""
        raise NotImplementedError

    def decode(self, box_deltas: Tensor, anchors: Tensor) -> Tensor:
        """Return the boxes that were encoded, within the limits of the coder. [..., 4], [..., 4] -> [..., 4]."""
        raise NotImplementedError

    def decode_on_host(self, box_deltas: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Return the result of `decode` for NumPy arrays. Default: `decode` by the backend."""
        return ops.convert_to_numpy(self.decode(ops.convert_to_tensor(box_deltas), ops.convert_to_tensor(anchors)))

    def decode_in_onnx(self, graph: Graph, box_deltas: str, anchors: str) -> str:
        """Add the operations of `decode` to an ONNX graph; coordinates are the last axis."""
        raise NotImplementedError(f"{type(self).__name__} has no ONNX translation: define decode_in_onnx")


@dataclass(frozen=True, kw_only=True)
class FasterRcnnBoxCoder(BoxCoder):
    """Offsets of centers in units of the anchor's sides and logarithms of side ratios (Ren et al. 2015, eq. 2).

    Attributes:
        weights: factors of (t_y, t_x, t_h, t_w); (10, 10, 5, 5) in the second stage of Mask R-CNN and in SSD, which
            calls the reciprocals 0.1 and 0.2 variances.
        log_size_limit: on decoding, t_h and t_w without their weights are clipped to this, so that sizes are bounded.
            None: no limit.
    """

    weights: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    log_size_limit: float | None = None

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        """Return offsets (t_y, t_x, t_h, t_w) from anchors. [..., 4], [..., 4] -> [..., 4], finite for empty boxes."""
        y, x, height, width = self._center_form(boxes)
        anchor_y, anchor_x, anchor_height, anchor_width = self._center_form(anchors)
        anchor_height = ops.maximum(anchor_height, _SMALLEST_SIDE)
        anchor_width = ops.maximum(anchor_width, _SMALLEST_SIDE)
        deltas = (
            (y - anchor_y) / anchor_height,
            (x - anchor_x) / anchor_width,
            ops.log(ops.maximum(height, _SMALLEST_SIDE) / anchor_height),
            ops.log(ops.maximum(width, _SMALLEST_SIDE) / anchor_width),
        )
        return ops.stack(
            [delta if weight == 1 else delta * weight for delta, weight in zip(deltas, self.weights, strict=True)],
            axis=-1,
        )

    def decode(self, box_deltas: Tensor, anchors: Tensor) -> Tensor:
        """Return the boxes that were encoded, within `log_size_limit`. [..., 4], [..., 4] -> [..., 4]."""
        t_y, t_x, t_h, t_w = (
            box_deltas[..., i] if weight == 1 else box_deltas[..., i] / weight for i, weight in enumerate(self.weights)
        )
        if self.log_size_limit is not None:
            t_h, t_w = ops.minimum(t_h, self.log_size_limit), ops.minimum(t_w, self.log_size_limit)
        anchor_y, anchor_x, anchor_height, anchor_width = self._center_form(anchors)
        y = t_y * anchor_height + anchor_y
        x = t_x * anchor_width + anchor_x
        half_height = ops.exp(t_h) * anchor_height / 2.0
        half_width = ops.exp(t_w) * anchor_width / 2.0
        return ops.stack([y - half_height, x - half_width, y + half_height, x + half_width], axis=-1)

    def decode_on_host(self, box_deltas: np.ndarray, anchors: np.ndarray) -> np.ndarray:
        """Return the result of `decode` for NumPy arrays, without a kernel launch of the backend for each operation."""
        if set(self.weights) != {1.0}:
            box_deltas = box_deltas / np.array(self.weights, np.float32)
        log_sizes = box_deltas[..., 2:]
        if self.log_size_limit is not None:
            log_sizes = np.minimum(log_sizes, np.float32(self.log_size_limit))
        sides = anchors[..., 2:] - anchors[..., :2]
        with np.errstate(over="ignore", invalid="ignore"):  # infinite or NaN boxes of a diverged network
            centers = box_deltas[..., :2] * sides + (anchors[..., :2] + anchors[..., 2:]) / 2
            halves = np.exp(log_sizes) * sides / 2
            return np.concatenate([centers - halves, centers + halves], axis=-1)

    def decode_in_onnx(self, graph: Graph, box_deltas: str, anchors: str) -> str:
        """Add the operations of `decode` to an ONNX graph, see `BoxCoder`."""
        centers, sizes = graph.add_several("Split", [box_deltas], 2, axis=-1, num_outputs=2)
        low, high = graph.add_several("Split", [anchors], 2, axis=-1, num_outputs=2)
        sides, middles = graph.add("Sub", [high, low]), graph.add("Div", [graph.add("Add", [low, high]), np.float32(2)])
        centers, sizes = (
            values if set(weights) == {1.0} else graph.add("Div", [values, np.array(weights, np.float32)])
            for values, weights in ((centers, self.weights[:2]), (sizes, self.weights[2:]))
        )
        if self.log_size_limit is not None:
            sizes = graph.add("Min", [sizes, np.float32(self.log_size_limit)])
        centers = graph.add("Add", [graph.add("Mul", [centers, sides]), middles])
        halves = graph.add("Div", [graph.add("Mul", [graph.add("Exp", [sizes]), sides]), np.float32(2)])
        low, high = graph.add("Sub", [centers, halves]), graph.add("Add", [centers, halves])
        return graph.add("Concat", [low, high], axis=-1)

    def _center_form(self, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return center y and x, height and width of boxes [..., 4], each [...]."""
        y_min, x_min, y_max, x_max = (boxes[..., i] for i in range(4))
        return (y_min + y_max) / 2.0, (x_min + x_max) / 2.0, y_max - y_min, x_max - x_min


PLAIN_BOX_CODER = FasterRcnnBoxCoder()
