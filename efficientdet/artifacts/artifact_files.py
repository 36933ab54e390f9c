"""Read exported detectors: content for a runtime, metadata, and the runtimes of each file type."""

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from dataset.files.bounded_files import open_regular_file
from dataset.files.xml_files import parse_xml
from efficientdet.artifacts.artifact_metadata import NAMES, ArtifactMetadata, metadata_of
from efficientdet.artifacts.onnx_props import onnx_props
from program_support.errors import InputError

# A file; or .xml and .bin of OpenVINO; or network and post-processing of LiteRT
ModelContent = bytes | tuple[bytes, bytes]
POSTPROCESSING = "efficientdet.postprocessing"  # key in a LiteRT file with the name of its post-processing file
_LITERT_MARK = b"TFL3"  # at offset 4
_MAX_BYTES = 1 << 28  # of an entry of the archive in a LiteRT file


class Kind(NamedTuple):
    """A file type of exported detectors."""

    name: str
    runtimes: tuple[str, ...]  # supported runtimes, the default first
    read: Callable[[Path], tuple[ModelContent, Mapping[str, str]]]  # raises OSError, and ValueError for another file


def kind_of(path: str | Path) -> Kind | None:
    """Return the file type by suffix; None if it is not an exported detector."""
    return _KINDS.get(Path(path).suffix.lower())


def read_artifact(path: str | Path) -> tuple[ModelContent, ArtifactMetadata]:
    """Return content and metadata of an exported detector. Raise InputError for any other file."""
    kind = kind_of(path)
    if kind is None:
        raise InputError(f"{path}: expected a file of export.py with a suffix of {', '.join(_KINDS)}")
    try:
        content, props = kind.read(Path(path))
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: is no {kind.name} file ({error})") from error
    return content, metadata_of(props, path=str(path))


def _content(path: Path) -> bytes:
    """Return the content of a regular file (reading a pipe could block). Raise OSError."""
    with open_regular_file(path) as file:
        return file.read()


def postprocessing_file(path: str | Path) -> Path:
    """Return the path of the post-processing file beside a LiteRT network; see litert_file."""
    return Path(path).with_name(f"{Path(path).stem}-postprocessing.tflite")


def _onnx(path: Path) -> tuple[bytes, Mapping[str, str]]:
    model = _content(path)
    return model, onnx_props(model)


def _openvino(path: Path) -> tuple[tuple[bytes, bytes], Mapping[str, str]]:
    network = _content(path)
    root = parse_xml(network)
    found = {name: root.find(f"rt_info/{name}") for name in NAMES}
    weights = _content(path.with_suffix(".bin"))
    return (network, weights), {name: entry.get("value", "") for name, entry in found.items() if entry is not None}


def _litert(path: Path) -> tuple[ModelContent, Mapping[str, str]]:
    model = _content(path)
    if model[4:8] != _LITERT_MARK:
        raise ValueError("no TFL3 identifier")
    if not zipfile.is_zipfile(io.BytesIO(model)):
        return model, {}  # a third-party file
    try:
        with zipfile.ZipFile(io.BytesIO(model)) as archive:
            entries = {
                entry.filename: archive.read(entry)
                for entry in archive.infolist()
                if entry.filename in (*NAMES, POSTPROCESSING) and entry.file_size <= _MAX_BYTES
            }
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(str(error)) from error
    content = (model, _content(postprocessing_file(path))) if POSTPROCESSING in entries else model
    return content, {name: entry.decode() for name, entry in entries.items()}


_KINDS = {
    ".onnx": Kind("ONNX", ("onnxruntime", "openvino"), _onnx),
    ".xml": Kind("OpenVINO", ("openvino",), _openvino),
    ".tflite": Kind("LiteRT", ("litert",), _litert),
}
