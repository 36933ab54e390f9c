"""The formats of exported detectors by name: those of this project, of its plugins and of installed packages."""

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientdet.configuration.flag_paths import existing_file, typed_name
from efficientdet.configuration.model_config import ModelConfig, require_package, require_runtime
from efficientdet.exports.exported_file import ExportFormat
from program_support.errors import InputError, nearest_name
from program_support.plugins import load_plugins

if TYPE_CHECKING:
    from pathlib import Path

    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detector
    from object_detection.coco.results import DetectionRows

PLUGINS = "efficientdet.export_formats"


class SavedModel(ExportFormat):
    """The complete detector for images of any size."""

    name, file, other_names = "savedmodel", "saved_model", ("saved_model", "tf")
    needs_tensorflow, title = True, "SavedModel"

    def recognizes(self, path: str) -> bool:
        """See `ExportFormat`."""
        return os.path.isfile(f"{path}/saved_model.pb")

    def write(self, restored: "Restored", path: "Path", calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.exports.saved_model import export_saved_model

        export_saved_model(restored.detector, str(path), description=restored.description, resize=restored.resize)

    def open(self, path: str, *, runtime: str = "keras") -> "Detector":
        """See `ExportFormat`. Successive images of a size run as a batch."""
        from efficientdet.exports.saved_model import load_saved_model
        from efficientdet.inference.detect import Detector, rows_of_image

        signature, description = load_saved_model(path)

        def detect(images: list[np.ndarray]) -> "list[DetectionRows]":
            return [rows for _, batch in groupby(images, np.shape) for rows in detect_batch(list(batch))]

        def detect_batch(images: list[np.ndarray]) -> "list[DetectionRows]":
            outputs = {name: np.asarray(values) for name, values in signature(np.stack(images)).items()}
            return [
                rows_of_image(
                    *(outputs[name][number][:count] for name in ("boxes", "scores", "classes")),
                    image=image,
                    masks=outputs["masks"][number][:count] if "masks" in outputs else None,
                    description=description,
                )
                for number, (image, count) in enumerate(zip(images, outputs["count"], strict=True))
            ]

        return Detector.described(detect, description)


_SAVED_MODEL = SavedModel()


def export_formats() -> Mapping[str, ExportFormat]:
    """Return every format by name."""
    return {one.name: one for one in (*load_plugins(PLUGINS), _SAVED_MODEL)}


def need_calibration(names: Iterable[str]) -> bool:
    """Return whether one of the formats has 8 bits, whose ranges are determined on calibration images."""
    return any(export_formats()[name].calibrates for name in names)


def format_of(path: str | os.PathLike[str] | None) -> ExportFormat | None:
    """Return the format of a user's file or SavedModel; None if it is neither."""
    if not path:
        return None
    formats = chain([_SAVED_MODEL], load_plugins(PLUGINS))
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
