"""A detector as OpenVINO's own two files, made of the ONNX file."""

import os
from pathlib import Path

import onnx

from dataset.input.resize import ResizeRule, host_resize
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.export.artefact_metadata import ArtefactMetadata
from efficientdet.machine.signal_stack import kept_signal_stack
from object_detection.atomic_files import unfinished_folder


@kept_signal_stack()
def write_openvino(model: onnx.ModelProto, path: str | Path, *, description: Description, resize: ResizeRule) -> None:
    """Write `path`, an .xml, and the .bin beside it, each whole or not at all, in float32; what it says of itself stands in its
    `rt_info`. Raises OSError."""
    import openvino

    path = Path(path)
    network = openvino.Core().read_model(model.SerializeToString())
    metadata = ArtefactMetadata(description=description, resize=host_resize(resize),
                                outputs=tuple(output.name for output in model.graph.output))
    for name, value in metadata.to_props().items():
        network.set_rt_info(value, [name])
    with unfinished_folder(path) as folder:
        try:
            openvino.save_model(network, folder / path.name, compress_to_fp16=False)
        except RuntimeError as error:  # as it tells a full disk
            raise OSError(None, str(error).strip().splitlines()[-1], str(path)) from error
        for suffix in (".bin", ".xml"):  # an .xml that stands has its weights
            os.replace(folder / path.with_suffix(suffix).name, path.with_suffix(suffix))
