"""Files that detect by themselves, read: what a runtime takes, what they say of themselves, and which runtimes run them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dataset.files.xml_files import parse_xml
from efficientdet.export.artefact_metadata import NAMES, ArtefactMetadata, metadata_of
from efficientdet.export.onnx_props import onnx_props
from object_detection.errors import InputError

ModelContent = bytes | tuple[bytes, bytes]  # a file's, or those of an OpenVINO .xml and its .bin


class Kind(NamedTuple):
    """A kind of artefact."""

    name: str
    runtimes: tuple[str, ...]  # that run it, the one that is taken by itself first
    read: Callable[[Path], tuple[ModelContent, Mapping[str, str]]]  # raises OSError, and ValueError for another file


def kind_of(path: str | Path) -> Kind | None:
    """By the end of its name; None for what is no artefact that detects."""
    return _KINDS.get(Path(path).suffix.lower())


def read_artefact(path: str | Path) -> tuple[ModelContent, ArtefactMetadata]:
    """A file that detects, and what it says. Raises InputError, one line, for any other file."""
    kind = kind_of(path)
    if kind is None:
        raise InputError(f"{path}: wanted a file of export.py that ends in {', '.join(_KINDS)}")
    try:
        content, props = kind.read(Path(path))
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: is no {kind.name} file ({error})") from error
    return content, metadata_of(props, path=str(path))


def _onnx(path: Path) -> tuple[bytes, Mapping[str, str]]:
    model = path.read_bytes()
    return model, onnx_props(model)


def _openvino(path: Path) -> tuple[tuple[bytes, bytes], Mapping[str, str]]:
    network = path.read_bytes()
    root = parse_xml(network)
    found = {name: root.find(f"rt_info/{name}") for name in NAMES}
    weights = path.with_suffix(".bin").read_bytes()
    return (network, weights), {name: entry.get("value", "") for name, entry in found.items() if entry is not None}


_KINDS = {
    ".onnx": Kind("ONNX", ("onnxruntime", "openvino"), _onnx),
    ".xml": Kind("OpenVINO", ("openvino",), _openvino),
}
