"""Quantization error of an int8 network by layer."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

from efficientdet.onnx_translation.quantization import last_convolutions

if TYPE_CHECKING:
    import onnxruntime

Input = Mapping[str, np.ndarray]
Layers = Callable[[Input], Sequence[np.ndarray]]  # outputs of the layers for the inputs of one image


def signal_to_noise(
    exact: onnx.ModelProto, in_8_bits: onnx.ModelProto, inputs: Iterable[Input]
) -> tuple[dict[str, float], list[float]]:
    """Return the signal-to-noise ratio of convolutions by name over all `inputs`, and of the last ones by input.

    In decibels; convolutions are sorted from the lowest on. The error of a layer includes those of earlier layers. See
    `last_convolutions`.
    """
    names = [node.name for node in exact.graph.node if node.op_type == "Conv"]
    last = np.isin(names, last_convolutions(exact))
    expected, quantized = (partial(_session_with_outputs(model, names).run, names) for model in (exact, in_8_bits))
    return ratios(expected, quantized, inputs, names=names, last=last)


def ratios(
    expected: Layers, quantized: Layers, inputs: Iterable[Input], *, names: Sequence[str], last: np.ndarray
) -> tuple[dict[str, float], list[float]]:
    """Return the result of `signal_to_noise`.

    Args:
        expected: the network in float32.
        quantized: the network in 8 bits.
        inputs: the images.
        names: the layers.
        last: [layers] bool, whether there is no convolution between a layer and the outputs.
    """
    powers = np.array(
        [
            [
                (np.mean(np.square(ours)), np.mean(np.square(ours - theirs)))
                for ours, theirs in zip(expected(one), quantized(one), strict=True)
            ]
            for one in inputs
        ],
        np.float64,
    )
    by_layer = dict(zip(names, _decibels(powers.sum(axis=0)), strict=True))
    return (
        dict(sorted(by_layer.items(), key=lambda entry: entry[1])),
        _decibels(powers[:, last].mean(axis=1)).tolist(),
    )


def _session_with_outputs(model: onnx.ModelProto, names: list[str]) -> "onnxruntime.InferenceSession":
    """Return a session of the model with additional outputs: tensors named as their nodes."""
    import onnxruntime

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(changed.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _decibels(powers: np.ndarray) -> np.ndarray:
    """Return decibels [...] of signal and noise powers [..., 2]; 200 without noise."""
    return 10 * np.log10(np.maximum(powers[..., 0], 1e-30) / np.maximum(powers[..., 1], 1e-20 * powers[..., 0] + 1e-40))
