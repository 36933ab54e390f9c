"""Resizing of an image as nodes of an ONNX graph, with the pixels of `dataset.input.host_resize`."""

import numpy as np

from dataset.input.host_resize import ResizeSettings
from object_detection.onnx_nodes import Graph

_CHANNELS = 3


def add_resize(graph: Graph, *, rule: ResizeSettings, image: str, images: str, sizes: str) -> str:
    """Add the rule for `image` [h, w, 3 or more] uint8, of any size; channels after the third are dropped.

    It defines the tensors `images` [1, H, W, 3] uint8 and `sizes` [1, 2] int32, the valid area. Return the scales [2]
    float32, pixels of the image per pixel of the input.
    """
    source = graph.cast(graph.add("Shape", [image], end=2), "float32")
    scaled = _scaled_size(graph, rule, source)
    scales = graph.add("Div", [source, graph.cast(scaled, "float32")])
    resample = _antialiased if rule.antialias else _interpolated
    pixels = graph.add("Add", [resample(graph, image, source, scaled, scales, rule), np.float32(0.5)])
    pixels = graph.add("Slice", [pixels, np.array([0]), np.array([_CHANNELS]), np.array([2])])
    missing = graph.add("Sub", [np.array(rule.size, np.int32), scaled])
    after = graph.add("Concat", [np.array([0, 0, 0]), graph.cast(missing, "int64"), np.array([0])], axis=0)
    padded = graph.add("Pad", [graph.cast(pixels, "uint8"), after])
    # The runtime fuses more layers if it knows the shape
    graph.add("Reshape", [padded, np.array([1, *rule.size, _CHANNELS])], name=images)
    graph.add("Reshape", [scaled, np.array([1, 2])], name=sizes)
    return scales


def _scaled_size(graph: Graph, rule: ResizeSettings, source: str) -> str:
    """Add `HostResize.scaled_size` of [2] float32: [2] int32."""
    if rule.kind == "stretch":
        return graph.add("Identity", [np.array(rule.size, np.int32)])
    if rule.kind == "letterbox":
        ratios, limits = graph.add("Div", [np.array(rule.size, np.float32), source]), rule.size
    else:
        sides = [graph.add(kind, [source]) for kind in ("ReduceMin", "ReduceMax")]
        ratios = graph.add(
            "Div", [np.array([rule.shorter, rule.longer], np.float32), graph.add("Concat", sides, axis=0)]
        )
        limits = (rule.longer, rule.longer)
    size = graph.cast(graph.add("Mul", [source, graph.add("ReduceMin", [ratios])]), "int32")
    return graph.add("Min", [graph.add("Max", [size, np.int32(1)]), np.array(limits, np.int32)])


def _interpolated(graph: Graph, image: str, source: str, scaled: str, scales: str, rule: ResizeSettings) -> str:
    """Interpolate bilinearly, first along rows: float32 [h', w', C]. Only the pixels that are needed become floats."""
    places = [_neighbors(graph, rule, *_elements(graph, axis, scaled, source, scales)) for axis in (0, 1)]
    (top, bottom, down), (left, right, across) = places

    def row(numbers: str) -> str:
        rows = graph.add("Gather", [image, numbers], axis=0)
        first, second = (
            graph.cast(graph.add("Gather", [rows, numbers], axis=1), "float32") for numbers in (left, right)
        )
        return _between(graph, first, second, graph.add("Reshape", [across, np.array([1, -1, 1])]))

    return _between(graph, row(top), row(bottom), graph.add("Reshape", [down, np.array([-1, 1, 1])]))


def _elements(graph: Graph, axis: int, *tensors: str) -> list[str]:
    """Return the element of each tensor [2] as float32 []."""
    return [graph.cast(graph.add("Gather", [tensor, np.array(axis)]), "float32") for tensor in tensors]


def _neighbors(graph: Graph, rule: ResizeSettings, count: str, source: str, scale: str) -> tuple[str, str, str]:
    """Return the pixels before and after each position, int64, and the distance from the one before: [count] each."""
    places = graph.add("Range", [np.float32(0), count, np.float32(1)])
    if rule.half_pixel_centers:
        places = graph.add("Mul", [graph.add("Add", [places, np.float32(0.5)]), scale])
        places = graph.add("Sub", [places, np.float32(0.5)])
    else:
        places = graph.add("Mul", [places, scale])
    lower = graph.add("Floor", [places])
    last = graph.add("Sub", [source, np.float32(1)])
    first, second = (
        graph.cast(graph.add("Clip", [number, np.float32(0), last]), "int64")
        for number in (lower, graph.add("Add", [lower, np.float32(1)]))
    )
    return first, second, graph.add("Sub", [places, lower])


def _between(graph: Graph, first: str, second: str, distance: str) -> str:
    return graph.add("Add", [first, graph.add("Mul", [graph.add("Sub", [second, first]), distance])])


def _antialiased(graph: Graph, image: str, source: str, scaled: str, scales: str, rule: ResizeSettings) -> str:
    """Resample with a triangle filter as wide as an output pixel: float32 [h', w', C]."""
    channels = graph.add("Shape", [image], start=2)
    floats = graph.add("Unsqueeze", [graph.cast(image, "float32"), np.array([0])])
    size = graph.add("Concat", [np.array([1]), graph.cast(scaled, "int64"), channels], axis=0)
    resized = graph.add(
        "Resize",
        [floats, "", "", size],
        mode="linear",
        antialias=1,
        exclude_outside=1,  # the weights are normalized over the pixels of the image
        coordinate_transformation_mode="half_pixel" if rule.half_pixel_centers else "asymmetric",
    )
    return graph.add("Squeeze", [resized, np.array([0])])
