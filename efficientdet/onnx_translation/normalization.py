"""Translation of a detector's normalization to ONNX, inferred by evaluating it, because it differs by family."""

import numpy as np
from keras import ops
from onnx import TensorProto

from efficientdet.onnx_translation.graph import OnnxGraph
from model.detection_model import DetectionModel
from program_support.errors import InputError

_LARGEST_DIFFERENCE = 1e-4  # share of the largest value


def add_normalization(graph: OnnxGraph, detector: DetectionModel, *, images: str, sizes: str) -> str:
    """Add `detector.normalize` of `images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32; return a float32 image.

    It must be a scale and shift of each channel within `sizes` and a constant color outside, else InputError is raised.
    """
    height, width = detector.image_size
    probe = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), np.uint8)
    size = np.array([[height // 2, width // 2]], np.int32)
    inside = np.zeros((1, height, width, 1), bool)
    inside[:, : height // 2, : width // 2] = True
    expected = _evaluated(detector, probe * inside, size)  # images are black outside
    shift, white = (_evaluated(detector, np.full_like(probe, value), size)[0, 0, 0] for value in (0, 255))
    scale, outside = (white - shift) / 255, expected[0, -1, -1]
    difference = np.abs(np.where(inside, probe * scale + shift, outside) - expected)
    if difference.max() > _LARGEST_DIFFERENCE * np.abs(expected).max():
        raise InputError(
            f"{type(detector).__name__}.normalize has no translation to ONNX: expected a scale and shift of each "
            "channel with a constant color outside of the image"
        )
    rows, columns = (
        graph.add("Cast", [_inside(graph, sizes, axis, side)], to=TensorProto.FLOAT)
        for axis, side in enumerate((height, width))
    )
    pixels = graph.add("Cast", [graph.image(images)], to=TensorProto.FLOAT)
    pixels = graph.add("Sub", [pixels, _by_channel((outside - shift) / scale)])
    pixels = graph.add("Mul", [pixels, graph.add("Mul", [rows, _by_channel(scale)])])  # a small product first
    pixels = graph.add("Mul", [pixels, columns])
    return graph.as_image(graph.add("Add", [pixels, _by_channel(outside)]) if outside.any() else pixels)


def _evaluated(detector: DetectionModel, images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(detector.normalize(*map(ops.convert_to_tensor, (images, sizes))), np.float64)


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).reshape(1, 3, 1, 1)


def _inside(graph: OnnxGraph, sizes: str, axis: int, side: int) -> str:
    """Return whether rows, [B, 1, H, 1] for axis 0, or columns, [B, 1, 1, W], belong to the image, bool."""
    limit = graph.add("Gather", [sizes, np.array([axis])], axis=1)
    limit = graph.add("Reshape", [limit, np.array([-1, 1, 1, 1])])
    return graph.add("Less", [np.arange(side, dtype=np.int32).reshape((1, 1, -1, 1) if axis == 0 else -1), limit])
