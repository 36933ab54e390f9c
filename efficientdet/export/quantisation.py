"""An exported network whose convolutions compute in 8 bits: faster on CPUs with instructions for that, at a cost in AP."""

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx

from dataset.files.image_files import read_image
from dataset.input.resize import ResizeRule
from efficientdet.machine.cpu import sums_of_bytes_saturate

_MOST_IMAGES = 100  # ranges of activations change little after some dozens


def quantised(model: onnx.ModelProto, images: Sequence[str], *, resize: ResizeRule) -> onnx.ModelProto:
    """A file of `onnx_model` with uint8 inputs and int8 kernels of its convolutions, as nodes that runtimes fuse.

    An input's range is what it takes over (up to a hundred of) the image files; a kernel has a scale for each output channel.
    All else, and what a convolution adds up to, stays float32. Kernels have 7 bits if sums would overflow on this CPU, for
    which the network is. Raises InputError for an image that cannot be read.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder, _without_advice():
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, str(before))
        quantize_static(
            before, after, _reader(_inputs(images, resize)), quant_format=QuantFormat.QDQ, op_types_to_quantize=["Conv"],
            per_channel=True, reduce_range=sums_of_bytes_saturate(),
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"]})  # what follows is fused as float32
        return onnx.load(str(after))


def _inputs(paths: Sequence[str], resize: ResizeRule) -> Iterator[Mapping[str, np.ndarray]]:
    """The file's inputs for up to a hundred of the images, evenly spread, each as a batch of one."""
    step = -(-len(paths) // _MOST_IMAGES)
    for path in paths[::step]:
        image, size, _ = (np.asarray(part)[None] for part in resize(read_image(path)))
        yield {"images": image, "sizes": size}


def _reader(inputs: Iterator[Mapping[str, np.ndarray]]):
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def get_next(self):
            return next(inputs, None)

    return Reader()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """A block without warnings in the log: the quantiser advises to optimise the float model first, and ours is folded."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
