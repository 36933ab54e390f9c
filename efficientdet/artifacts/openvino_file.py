"""A detector as OpenVINO's own two files, made of the ONNX file."""

import os
from pathlib import Path

import onnx

from dataset.input.resize import ResizeRule
from efficientdet.artifacts.onnx_file import model_props
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.devices.signal_stack import kept_signal_stack
from program_support.atomic_files import unfinished_folder


@kept_signal_stack()
def write_openvino(model: onnx.ModelProto, path: str | Path, *, description: Description, resize: ResizeRule) -> None:
    """Write `path`, an .xml, and the .bin beside it, each whole or not at all, in float32; what it says of itself stands in its
    `rt_info`. Raises OSError."""
    import openvino

    path = Path(path)
    network = openvino.Core().read_model(model.SerializeToString())
    for name, value in model_props(model, description=description, resize=resize).items():
        network.set_rt_info(value, [name])
    with unfinished_folder(path) as folder:
        try:
            openvino.save_model(network, folder / path.name, compress_to_fp16=False)
        except RuntimeError as error:  # as it tells a full disk
            raise OSError(None, str(error).strip().splitlines()[-1], str(path)) from error
        for suffix in (".bin", ".xml"):  # an .xml that stands has its weights
            os.replace(folder / path.with_suffix(suffix).name, path.with_suffix(suffix))
