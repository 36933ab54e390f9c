"""Translation of a detector's normalization to ONNX, inferred by evaluating it, because it differs by family."""

import numpy as np
from keras import ops
from numpy.typing import ArrayLike
from onnx import TensorProto

from efficientdet.onnx_translation.graph import OnnxGraph
from model.detection_model import DetectionModel
from model.normalization import IMAGENET_MEAN, IMAGENET_STDDEV
from program_support.errors import InputError

_LARGEST_DIFFERENCE = 1e-4  # share of the largest value


def add_normalization(graph: OnnxGraph, detector: DetectionModel, *, images: str, sizes: str) -> str:
    """Add `detector.normalize` of `images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32; return a float32 image.

    It must be a scale and shift of each channel within `sizes` and a constant color outside, else InputError is raised.
    """
    height, width = detector.image_size
    probe = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), np.uint8)
    size = np.array([[height // 2, width // 2]], np.int32)
    probe *= _is_inside(probe, size)  # images are black outside
    expected = _evaluated(detector, probe, size)
    for times in (1, 2):  # twice: a convention of NVIDIA
        if _agree(_imagenet(probe, size, times=times), expected):
            return _add_imagenet(graph, images, _inside(graph, sizes, height, width), times=times)
    black, white = (_evaluated(detector, np.full_like(probe, value), size)[0, 0, 0] for value in (0, 255))
    scale, shift, outside = (white - black) / 255, black, expected[0, -1, -1]
    if not _agree(np.where(_is_inside(probe, size), probe * scale + shift, outside), expected):
        raise InputError(
            f"{type(detector).__name__}.normalize has no translation to ONNX: expected a scale and shift of each "
            "channel with a constant color outside of the image"
        )
    pixels = graph.add("Cast", [graph.image(images)], to=TensorProto.FLOAT)
    pixels = graph.add("Add", [graph.add("Mul", [pixels, _by_channel(scale)]), _by_channel(shift)])
    rows, columns = _inside(graph, sizes, height, width)
    return graph.add_image("Where", [graph.add("And", [rows, columns]), pixels, _by_channel(outside)])


def _evaluated(detector: DetectionModel, images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(detector.normalize(*map(ops.convert_to_tensor, (images, sizes))), np.float32)


def _agree(values: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(values - expected).max() <= _LARGEST_DIFFERENCE * np.abs(expected).max())


def _is_inside(images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    rows, columns = (np.arange(side)[None] < sizes[:, axis, None] for axis, side in enumerate(images.shape[1:3]))
    return (rows[:, :, None] & columns[:, None])[..., None]


def _imagenet(images: np.ndarray, sizes: np.ndarray, *, times: int) -> np.ndarray:
    """Normalize with ImageNet's mean and deviation, with 0 outside; repetitions include the outside."""
    mean, stddev = np.array(IMAGENET_MEAN, np.float32), np.array(IMAGENET_STDDEV, np.float32)
    pixels = np.where(_is_inside(images, sizes), (images / np.float32(255) - mean) / stddev, 0)
    for _ in range(times - 1):
        pixels = (pixels - mean) / stddev
    return pixels


def _add_imagenet(graph: OnnxGraph, images: str, inside: tuple[str, str], *, times: int) -> str:
    """Add `_imagenet` with the fewest passes over the pixels."""
    mean, stddev = map(_by_channel, (IMAGENET_MEAN, IMAGENET_STDDEV))
    rows, columns = (graph.add("Cast", [tensor], to=TensorProto.FLOAT) for tensor in inside)
    pixels = graph.add("Cast", [graph.image(images)], to=TensorProto.FLOAT)
    pixels = graph.add("Sub", [pixels, 255.0 * mean])
    pixels = graph.add("Mul", [pixels, graph.add("Mul", [rows, 1.0 / (255.0 * stddev)])])
    pixels = graph.add("Mul", [pixels, columns])
    for _ in range(times - 1):
        pixels = graph.add("Div", [graph.add("Sub", [pixels, mean]), stddev])
    return graph.as_image(pixels)


def _by_channel(values: ArrayLike) -> np.ndarray:
    return np.array(values, np.float32).reshape(1, 3, 1, 1)


def _inside(graph: OnnxGraph, sizes: str, height: int, width: int) -> tuple[str, str]:
    """Return whether rows [B, 1, H, 1] and columns [B, 1, 1, W] belong to the image, bool."""
    constants = []
    for axis, (side, shape) in enumerate(((height, (1, 1, height, 1)), (width, (1, 1, 1, width)))):
        limit = graph.add("Gather", [sizes, np.array([axis])], axis=1)
        limit = graph.add("Reshape", [limit, np.array([-1, 1, 1, 1])])
        constants.append(graph.add("Less", [np.arange(side, dtype=np.int32).reshape(shape), limit]))
    return constants[0], constants[1]
