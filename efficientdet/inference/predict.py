"""Detection: uint8 images in, boxes in original pixels out; one compiled program on an accelerator."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from efficientdet.devices import device
from efficientdet.devices.device import sums_of_bytes_saturate
from efficientdet.devices.runtime import accelerator_count
from efficientdet.inference.exported_network import ExportedNetwork, Outputs, copied
from model.detector import Detector, detections_in_original
from object_detection.structures import Detections, Tensor
from object_detection.suppression.host_suppression import stacked

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

Predict = Callable[[Tensor, Tensor, Tensor], Detections]
Reader = Callable[[Outputs, np.ndarray], Any]  # of the outputs of one image and its size [2]
# Of images [B, H, W, 3] uint8 and sizes [B, 2] int32 what a reader makes of each image.
Network = Callable[[np.ndarray, np.ndarray, Reader], list]


def build_predict(
    detector: Detector, *, compiled: bool, runtime: str = "keras", int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> Predict:
    """A function of images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`).

    -> Detections in pixels of the original images, clipped to them. With the weights that the network has at each call;
    another `runtime` than Keras keeps those that it has now, in 8 bits where there are `int8_images`, which `resize` makes
    inputs of.
    """
    network = network_read_on_host(detector, compiled=compiled, runtime=runtime, int8_images=int8_images, resize=resize)
    if network is not None:
        return predict_on_host(detector, network)
    return device.compiled(lambda images, sizes, scales: detections_in_original(detector, images, sizes, scales),
                           detector.network, use_xla=compiled)


def host_reader(detector: Detector) -> Reader | None:
    """What reads the outputs of one image in NumPy, of a file or of `_network_of_backend`; Detections without B.

    None for a detector that only a backend can read.
    """
    return detector.detections_on_host if detector.detects_on_host else None


def network_read_on_host(
    detector: Detector, *, compiled: bool, runtime: str = "keras", int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> Network | None:
    """The detector's network where it runs by itself and NumPy reads its outputs; None where one compiled program does it all.

    NumPy's candidates and suppression take a fifth of the time of a backend's on a CPU, which picks one box at a time as an
    accelerator does.
    """
    if runtime != "keras":
        return exported_network(detector, runtime=runtime, int8_images=int8_images, resize=resize)
    in_one_program = compiled or accelerator_count() or host_reader(detector) is None
    return None if in_one_program else _network_of_backend(detector)


def exported_network(
    detector: Detector, *, runtime: str, int8_images: Sequence[str] = (), resize: "ResizeRule | None" = None
) -> ExportedNetwork:
    """The detector's network as it is now, in another runtime; with files to take ranges from, in 8 bits."""
    from efficientdet.artifacts.onnx_file import onnx_model

    model = onnx_model(detector, for_onnxruntime=runtime == "onnxruntime" and not int8_images)
    if int8_images:
        from efficientdet.artifacts.int8_calibration import calibration_of_files
        from efficientdet.artifacts.quantization import quantised

        model = quantised(model, calibration_of_files(int8_images).inputs(resize), narrow=sums_of_bytes_saturate())
    return ExportedNetwork(model.SerializeToString(), runtime=runtime)


def _network_of_backend(detector: Detector) -> Network:
    run = device.compiled(lambda images, sizes: detector.host_outputs(detector.outputs(images, sizes)), detector.network,
                          use_xla=False)

    def detect(images, sizes, read):
        return [read(*image) for image in zip(zip(*map(np.asarray, run(images, sizes)), strict=True), sizes, strict=True)]

    return detect


def predict_on_host(detector: Detector, network: Network) -> Predict:
    """`build_predict` around a network that runs by itself."""
    detect = detect_on_host(detector, network)

    def predict(images, sizes, scales):
        images, sizes, scales = np.asarray(images), np.asarray(sizes, np.int32), np.asarray(scales)
        found = detect(images, sizes)
        limits = np.tile(sizes.astype(np.float32), 2)[:, None]
        return found._replace(boxes=np.clip(found.boxes, 0, limits) * np.tile(scales, 2)[:, None])

    return predict


def detect_on_host(detector: Detector, network: Network) -> Callable[[np.ndarray, np.ndarray], Detections]:
    """Images [B, H, W, 3] uint8 and sizes [B, 2] int32 -> Detections of arrays, in pixels of the network input."""
    read = host_reader(detector)
    if read is not None:  # at once, while the network sees the next image
        return lambda images, sizes: stacked(network(images, sizes, read))
    detect = detect_in_outputs(detector)
    return lambda images, sizes: detect(network(images, sizes, copied), sizes)


def detect_in_outputs(detector: Detector) -> Callable[[Sequence[Outputs], np.ndarray], Detections]:
    """The outputs of B images and their sizes [B, 2] -> Detections of arrays, in pixels of the network input."""
    read = host_reader(detector)
    if read is not None:
        return lambda images, sizes: stacked([read(*image) for image in zip(images, sizes, strict=True)])
    nothing = np.zeros((1, *detector.image_size, 3), np.uint8), np.int32([detector.image_size])
    structure = detector.outputs(*map(ops.convert_to_tensor, nothing))  # a nest in the order of the network's outputs

    def detect(images, sizes):
        flat = [ops.convert_to_tensor(np.stack(values)) for values in zip(*images, strict=True)]
        outputs = keras.tree.pack_sequence_as(structure, flat)
        found = detector.detections(outputs, ops.convert_to_tensor(sizes))
        return found._replace(**{name: np.asarray(values) for name, values in found._asdict().items() if values is not None})

    return detect
