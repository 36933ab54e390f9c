"""How far a network in 8 bits is from the one in 32, layer by layer."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from efficientdet.artifacts.quantization import last_convolutions


def signal_to_noise(
    exact: onnx.ModelProto, in_8_bits: onnx.ModelProto, inputs: Iterable[Mapping[str, np.ndarray]]
) -> tuple[dict[str, float], list[float]]:
    """Decibels of what each convolution puts out, by its name, the lowest first, over all `inputs`; and of what the last
    convolutions put out (see `last_convolutions`), by input. Errors of earlier layers are in those of later ones."""
    names = [node.name for node in exact.graph.node if node.op_type == "Conv"]
    last = np.isin(names, last_convolutions(exact))
    sessions = [_putting_out(model, names) for model in (exact, in_8_bits)]
    powers = []  # [images, layers, 2]: of the signal, of the noise
    for one in inputs:
        wanted, found = (session.run(names, one) for session in sessions)
        powers.append([(np.mean(np.square(ours)), np.mean(np.square(ours - theirs)))
                       for ours, theirs in zip(wanted, found, strict=True)])
    powers = np.float64(powers)
    by_layer = dict(zip(names, _decibels(powers.sum(axis=0)), strict=True))
    return (dict(sorted(by_layer.items(), key=lambda entry: entry[1])),
            _decibels(powers[:, last].mean(axis=1)).tolist())


def _putting_out(model: onnx.ModelProto, names: list[str]):
    """A session of the model with these tensors, named as the nodes that make them, among the outputs."""
    import onnxruntime

    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(changed.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _decibels(powers: np.ndarray) -> np.ndarray:
    """[..., 2] -> [...]; 200 where there is no noise."""
    return 10 * np.log10(np.maximum(powers[..., 0], 1e-30) / np.maximum(powers[..., 1], 1e-20 * powers[..., 0] + 1e-40))
