"""The bidirectional feature pyramid of EfficientDet (Tan et al. 2020, section 3).

Layer names are those of the published TensorFlow checkpoints, with dots instead of slashes.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated, Any

import keras
import numpy as np
from keras import ops

from model.batch_norm import BatchNormalization
from model.fast_layers import activation_layer
from object_detection.structures import Tensor
from program_support.checked_fields import Count, checked_part, one_of

PYRAMIDS = ("bifpn", "qufpn")
WEIGHT_METHODS = ("fastattn", "sum")
Shape = tuple[int | None, ...]


@checked_part
class BifpnConfig:
    """Shape of the pyramid: `cells` repeats of top-down and bottom-up fusion over levels min_level .. max_level.

    Attributes:
        pyramid: "bifpn", or "qufpn" with four paths; see `cell_nodes`.
        weight_method: "fastattn" (positive weights, normalized by their sum) or "sum".
        fusion_relu: apply ReLU to these weights, as in the paper but not in NVIDIA's code.
        half_pixel_upsampling: see `NearestResize`.
        padding: how layers of stride 2 pad: "same" as in TensorFlow, or "symmetric" as in PyTorch.
    """

    filters: Count
    cells: Count
    min_level: int = 3
    max_level: int = 7
    pyramid: Annotated[str, one_of(*PYRAMIDS)] = "bifpn"
    weight_method: Annotated[str, one_of(*WEIGHT_METHODS)] = "fastattn"
    fusion_relu: bool = True
    half_pixel_upsampling: bool = False
    padding: str = "same"
    activation: str = "silu"
    separable_conv: bool = True
    apply_bn_for_resampling: bool = True
    conv_after_downsample: bool = False
    conv_bn_act_pattern: bool = False


@keras.saving.register_keras_serializable("efficientdet")
class WeightedFusion(keras.layers.Layer):
    """Weighted mean of feature maps of one shape ("fast normalized fusion", Tan et al. 2020, eq. in section 3.3)."""

    def __init__(self, *, fusion_relu: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.fusion_relu = fusion_relu

    def build(self, input_shape: Sequence[Shape]) -> None:
        """Create one scalar weight per input, initialized to 1 and named as in the published checkpoints."""
        self.fusion_weights = [
            self.add_weight(name=f"WSM_{i}" if i else "WSM", shape=(), initializer="ones", autocast=False)
            for i in range(len(input_shape))
        ]

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the weighted mean of n tensors [B, H, W, F], [B, H, W, F]."""
        weights = [ops.convert_to_tensor(weight.value) for weight in self.fusion_weights]
        if self.fusion_relu:
            weights = [ops.relu(weight) for weight in weights]
        total = sum(weights[1:], weights[0]) + 1e-4
        terms = [
            ops.cast(weight / total, tensor.dtype) * tensor for weight, tensor in zip(weights, inputs, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of each input."""
        return input_shape[0]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "fusion_relu": self.fusion_relu}


@keras.saving.register_keras_serializable("efficientdet")
class NearestResize(keras.layers.Layer):
    """Nearest-neighbor resizing of [B, h, w, F] to [B, H, W, F].

    Output row i copies input row floor(i h / H), as in google/automl's networks, or with half_pixel_centers
    floor((i + 0.5) h / H), as in NVIDIA's. They differ if H is not a multiple of h.
    """

    def __init__(self, size: tuple[int, int], *, half_pixel_centers: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.size = tuple(size)
        self.half_pixel_centers = half_pixel_centers

    def source_rows(self, source: int, target: int) -> list[int]:
        """Return the `source` row (or column) that each of `target` rows copies."""
        if not self.half_pixel_centers:
            return [row * source // target for row in range(target)]
        # In float32 as in TensorFlow: with an even number of rows the middle one falls on an integer, and rounding
        # decides.
        centers = np.arange(target, dtype=np.float32) + np.float32(0.5)
        return (
            np.minimum(np.floor(centers * (np.float32(source) / np.float32(target))), source - 1).astype(int).tolist()
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Resize [B, h, w, F] to [B, H, W, F]."""
        (height, width), channels = inputs.shape[1:3], inputs.shape[3]
        (rows, row_rest), (columns, column_rest) = map(divmod, self.size, (height, width))
        if row_rest == column_rest == 0:
            cells = ops.reshape(inputs, (-1, height, 1, width, 1, channels))
            return ops.reshape(ops.tile(cells, (1, 1, rows, 1, columns, 1)), (-1, *self.size, channels))
        outputs = ops.take(inputs, self.source_rows(height, self.size[0]), axis=1)
        return ops.take(outputs, self.source_rows(width, self.size[1]), axis=2)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return [B, H, W, F] for inputs [B, h, w, F]."""
        return (input_shape[0], *self.size, input_shape[3])

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "size": self.size, "half_pixel_centers": self.half_pixel_centers}


@keras.saving.register_keras_serializable("efficientdet")
class SymmetricMaxPooling2D(keras.layers.MaxPooling2D):
    """Maximum of 3 x 3 with stride 2, padded by one pixel on each side as in PyTorch: [B, H, W, F] to [B, h, w, F]."""

    def __init__(self, **kwargs: Any):
        super().__init__(**{**kwargs, "pool_size": 3, "strides": 2, "padding": "valid"})

    def call(self, inputs: Tensor) -> Tensor:
        """Pool [B, H, W, F]; a repeated border does not change a maximum."""
        return super().call(ops.pad(inputs, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="symmetric"))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return [B, (H + 1) // 2, (W + 1) // 2, F]."""
        batch, height, width, filters = input_shape
        assert height is not None
        assert width is not None
        return batch, (height + 1) // 2, (width + 1) // 2, filters


def build_bifpn(features: list[Tensor], config: BifpnConfig) -> list[Tensor]:
    """Return the fused features of levels min_level .. max_level, one tensor [B, h, w, filters] per level.

    features: those of the backbone from min_level up. Its last level may be below max_level; coarser ones are created
    by pooling.
    """
    pyramid = list(features)
    last = config.min_level + len(features) - 1
    for level in range(last + 1, config.max_level + 1):
        pyramid.append(_downsampled(pyramid[-1], config, name=f"resample_p{level}"))
    for cell in range(config.cells):
        pyramid = _bifpn_cell(pyramid, config, name=f"fpn_cells.cell_{cell}")
    return pyramid


def cell_nodes(min_level: int, max_level: int, pyramid: str = "bifpn") -> list[tuple[int, list[int]]]:
    """Return the nodes of a cell in order: (level, numbers of the feature maps it fuses).

    Feature maps 0 .. n-1 are the cell's inputs from min_level up; node i makes map n + i. Each path visits the levels
    in turn: a node fuses the maps that earlier paths have made of its level with the latest map of the level before.
    The BiFPN has a top-down and then a bottom-up path. The quad FPN (Wang et al. 2020) has also a bottom-up and then a
    top-down path, and fuses the ends of both pairs.
    """
    up = [*range(min_level, max_level + 1)]
    down = up[::-1]
    inputs = {level: number for number, level in enumerate(up)}
    nodes: list[tuple[int, list[int]]] = []

    def add(level: int, sources: list[int]) -> int:
        nodes.append((level, sources))
        return len(up) + len(nodes) - 1

    def path(levels: list[int], *earlier: dict[int, int]) -> dict[int, int]:
        latest = {levels[0]: earlier[-1][levels[0]]}
        for previous, level in itertools.pairwise(levels):
            latest[level] = add(level, [*dict.fromkeys(maps[level] for maps in earlier), latest[previous]])
        return latest

    bottom_up = path(up, inputs, path(down, inputs))
    if pyramid == "qufpn":
        top_down = path(down, inputs, path(up, inputs))
        for level in up:
            add(level, [bottom_up[level], top_down[level]])
    return nodes


def _bifpn_cell(inputs: list[Tensor], config: BifpnConfig, *, name: str) -> list[Tensor]:
    maps = list(inputs)
    latest = {}
    for node, (level, sources) in enumerate(cell_nodes(config.min_level, config.max_level, config.pyramid)):
        size = inputs[level - config.min_level].shape[1:3]
        resampled = [
            _resampled(maps[source], size, config, name=f"{name}.fnode{node}.resample_{i}_{source}_{len(maps)}")
            for i, source in enumerate(sources)
        ]
        if config.weight_method == "fastattn":
            fused = WeightedFusion(fusion_relu=config.fusion_relu, name=f"{name}.fnode{node}")(resampled)
        else:
            fused = keras.layers.Add(name=f"{name}.fnode{node}")(resampled)
        latest[level] = _after_fusion(fused, config, name=f"{name}.fnode{node}.op_after_combine{len(maps)}")
        maps.append(latest[level])
    return [latest[level] for level in range(config.min_level, config.max_level + 1)]


def _after_fusion(features: Tensor, config: BifpnConfig, *, name: str) -> Tensor:
    activate = activation_layer(config.activation, name=f"{name}.act")
    use_bias = not config.conv_bn_act_pattern
    if config.separable_conv:
        conv = keras.layers.SeparableConv2D(config.filters, 3, padding="same", use_bias=use_bias, name=f"{name}.conv")
    else:
        conv = keras.layers.Conv2D(config.filters, 3, padding="same", use_bias=use_bias, name=f"{name}.conv")
    normalize = BatchNormalization(name=f"{name}.bn")
    if config.conv_bn_act_pattern:
        return activate(normalize(conv(features)))
    return normalize(conv(activate(features)))


def _resampled(features: Tensor, size: tuple[int, int], config: BifpnConfig, *, name: str) -> Tensor:
    """Return the feature map at another level's size, with the pyramid's number of filters."""
    if features.shape[1] > size[0] or features.shape[2] > size[1]:
        return _downsampled(features, config, name=name)
    features = _with_filters(features, config, name=name)
    if tuple(features.shape[1:3]) != tuple(size):
        features = NearestResize(size, half_pixel_centers=config.half_pixel_upsampling, name=f"{name}.upsample")(
            features
        )
    return features


def _downsampled(features: Tensor, config: BifpnConfig, *, name: str) -> Tensor:
    if config.padding == "symmetric":
        pool = SymmetricMaxPooling2D(name=f"{name}.pool")
    else:
        pool = keras.layers.MaxPooling2D(3, strides=2, padding="same", name=f"{name}.pool")
    if config.conv_after_downsample:
        return _with_filters(pool(features), config, name=name)
    return pool(_with_filters(features, config, name=name))


def _with_filters(features: Tensor, config: BifpnConfig, *, name: str) -> Tensor:
    if features.shape[-1] == config.filters:
        return features
    features = keras.layers.Conv2D(config.filters, 1, name=f"{name}.conv2d")(features)
    return BatchNormalization(name=f"{name}.bn")(features) if config.apply_bn_for_resampling else features
