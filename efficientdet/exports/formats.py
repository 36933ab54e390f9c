"""The formats of exported detectors by name: those of this project, and entry points of installed packages."""

import os
from collections.abc import Mapping, Sequence
from functools import cache

from efficientdet.configuration.flag_paths import existing_file, typed_name
from efficientdet.configuration.model_config import ModelConfig, require_package, require_runtime
from efficientdet.exports.export_format import ExportFormat
from program_support.errors import InputError, nearest_name

ENTRY_POINTS = "efficientdet.export_formats"


@cache
def _own_formats() -> tuple[ExportFormat, ...]:
    """Return the formats of this project. A new one is a class of `ExportFormat` and an entry here."""
    from efficientdet.exports.folder_formats import Cvat, SavedModel, Web
    from efficientdet.exports.litert.formats import Litert, LitertFullInt8, LitertFullInt8Raw, LitertInt8
    from efficientdet.exports.onnx.formats import Onnx, OnnxEfficientNms, OnnxInt8, OnnxRaw, OpenVino

    onnx = Onnx(), OnnxRaw(), OnnxInt8(), OnnxEfficientNms(), OpenVino()
    return *onnx, Litert(), LitertInt8(), LitertFullInt8(), LitertFullInt8Raw(), SavedModel(), Web(), Cvat()


def _other_formats() -> tuple[ExportFormat, ...]:
    from importlib.metadata import entry_points  # 20 ms

    return tuple(entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS)))


def export_formats() -> Mapping[str, ExportFormat]:
    """Return every format by name, those of this project first."""
    return {one.name: one for one in (*_own_formats(), *_other_formats())}


def format_of(path: str | os.PathLike[str] | None) -> ExportFormat | None:
    """Return the format of a user's file or SavedModel; None if it is neither."""
    if not path:
        return None
    formats = (one for formats in (_own_formats, _other_formats) for one in formats())
    return next((one for one in formats if one.recognizes(os.fspath(path))), None)


def checked_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Return the formats without duplicates.

    Raises:
        InputError: for an unknown format or a missing package.
    """
    known = export_formats()
    chosen = tuple(dict.fromkeys(names))
    if unknown := [name for name in chosen if name not in known]:
        meant = (one.name for one in known.values() if unknown[0].casefold() in one.other_names)
        nearest = next(meant, None) or nearest_name(unknown[0].replace("_", "-"), known)
        hint = f"; did you mean {nearest}?" if nearest else ""
        raise InputError(f"--formats={unknown[0]}: expected some of {', '.join(known)}{hint}")
    if not chosen:
        raise InputError(f"--formats is empty; expected some of {', '.join(known)}")
    require_runtime("onnxruntime", asked_by="an export")
    for name in chosen:
        require_package(known[name].needs, asked_by=f"--formats={name}")
    return chosen


def exported_model(exported: ExportFormat, path: str, runtime: str | None, flag: str) -> ModelConfig:
    """Return the configuration of an exported file that a flag names.

    Raises:
        InputError: it does not exist, or the runtime cannot run it.
    """
    existing_file(path, flag)
    asked_by = f"--{typed_name(flag)}"
    return ModelConfig(ckpt_path=path, runtime=exported.runtime_of(path, runtime or "keras", asked_by=asked_by))
