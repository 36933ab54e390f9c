"""Formats of exported detectors, found by name.

Their classes are in the package `exports`, which uses this one, and in entry points of installed packages.
"""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientdet.configuration.inference_runtimes import require_package, require_runtime
from program_support.errors import InputError, nearest_name

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detect, Detector
    from model.detection_model import DetectionModel

ENTRY_POINTS = "efficientdet.export_formats"
_PACKAGE = "exports"
DEFAULT_FORMATS = ("onnx", "onnx-raw", "savedmodel")
BATCHES = (1, 2, 8)
TRUSTED_ONLY = "use trusted sources only: its graph may read and write files"
NetworkInputs = tuple[np.ndarray, np.ndarray]  # images uint8 [1, H, W, 3], sizes int32 [1, 2]
Runs = dict[str, Callable[[], object]]  # "complete", "network" or "postprocessing" -> a run of this part


class ExportFormat:
    """A format of export.py: writes a detector, opens what it wrote, and describes it.

    Attributes:
        name: value of `--formats`.
        file: name of the written file or folder.
        other_names: names of the format in other projects, for which it is suggested.
        needs: package that runs the file here.
        needs_tensorflow: whether it is written by TensorFlow.
        calibrates: whether it has 8 bits, whose ranges are determined on calibration images.
        float32: name of the format that a file in 8 bits should be faster than.
        batches: batch sizes in which the file is compared with its checkpoint.
        runs_in: program that runs the file if it is not timed here.
        title: name of the file type in messages.
        runtimes: runtimes of a user's file, the default first; () for a SavedModel, which TensorFlow runs.
    """

    name: str
    file: str
    other_names: tuple[str, ...] = ()
    needs = "onnxruntime"
    needs_tensorflow = False
    calibrates = False
    float32: str | None = None
    batches: tuple[int, ...] = BATCHES
    runs_in: str | None = None
    title = ""
    runtimes: tuple[str, ...] = ()

    def recognizes(self, path: str) -> bool:
        """Return whether a user's file or folder, which may not exist, is of this type. Default: no."""
        return False

    def check(self, detector: "DetectionModel") -> None:
        """Raise InputError if the backend or the format cannot express the detector."""
        from efficientdet.devices.device import backend_name

        if self.needs_tensorflow and (backend := backend_name()) != "tensorflow":
            raise InputError(f"--formats={self.name}: needs the TensorFlow backend; KERAS_BACKEND is {backend}")

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """Write the file or folder. calibration: `CalibrationImages` for 8 bits.

        Raises:
            OSError, InputError: the detector cannot be expressed.
        """
        raise NotImplementedError

    def files(self, path: Path) -> list[Path]:
        """Return all files that `write` wrote."""
        return [path]

    def runtime_of(self, path: str, runtime: str, *, asked_by: str) -> str:
        """Return the chosen runtime of a user's file, or for "keras" the file's default.

        Raises:
            InputError: the runtime cannot run the file or is not installed.
        """
        runtime = self.default_runtime(path) if runtime == "keras" else runtime
        if runtime not in self.runtimes:
            raise InputError(
                f"{asked_by}: {path} is a file of {self.title}; {runtime} cannot run it, {self.runtimes[0]} can"
            )
        require_package(runtime, asked_by=asked_by)
        return runtime

    def default_runtime(self, path: str) -> str:
        """Return the runtime of a user's file."""
        return self.runtimes[0]

    def open(self, path: str, *, runtime: str = "keras", same_size: bool = False) -> "Detector":
        """Open a file with the result of `runtime_of`.

        same_size: all images of a call have the same size.

        Raises:
            InputError: for other files.
        """
        raise NotImplementedError

    def open_for(self, restored: "Restored", path: Path) -> "Detect | None":
        """Return the detection of a written file, with the post-processing of its checkpoint if it has none.

        None if the file cannot be run here. Default: `open`, or None with `runs_in`.
        """
        return None if self.runs_in else self.open(str(path), runtime=self.needs).detect

    def compare_inputs(
        self, restored: "Restored", path: Path, images: Sequence[np.ndarray], *, pixels: float
    ) -> list[Any]:
        """Return an `Agreement` for each image with a file that cannot be run here. Default: none is compared."""
        return []

    def parts(self, restored: "Restored", path: Path, inputs: NetworkInputs) -> Runs:
        """Return runs of parts of the file, to time network and post-processing. Default: it cannot be divided."""
        return {}

    def signal_to_noise(
        self, restored: "Restored", path: Path, calibration: Any
    ) -> tuple[dict[str, float], list[float]] | None:
        """Return decibels by layer and by calibration image. None (default): layers cannot be compared."""
        return None

    def describe(self, path: Path) -> list[str]:
        """Return lines about the written file for artifacts.md. Default: none."""
        return []


@cache
def export_formats() -> Mapping[str, ExportFormat]:
    """Return every format by name, those of this project first."""
    built_in = importlib.import_module(f"efficientdet.{_PACKAGE}.formats").FORMATS
    formats = (*built_in, *(entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS))))
    return {one.name: one for one in formats}


def format_of(path: str | os.PathLike[str] | None) -> ExportFormat | None:
    """Return the format of a user's file or SavedModel; None if it is neither."""
    return next((one for one in export_formats().values() if one.recognizes(os.fspath(path))), None) if path else None


def is_saved_model(folder: str | None) -> bool:
    """Return whether a folder has a SavedModel."""
    return os.path.isfile(f"{folder}/saved_model.pb") if folder else False


def checked_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Return the formats without duplicates.

    Raises:
        InputError: for an unknown format or a missing package.
    """
    known = export_formats()
    chosen = tuple(dict.fromkeys(names))
    if unknown := [name for name in chosen if name not in known]:
        nearest = next(_suggestions(unknown[0]), None) or nearest_name(unknown[0].replace("_", "-"), known)
        hint = f"; did you mean {nearest}?" if nearest else ""
        raise InputError(f"--formats={unknown[0]}: expected some of {', '.join(known)}{hint}")
    if not chosen:
        raise InputError(f"--formats is empty; expected some of {', '.join(known)}")
    require_runtime("onnxruntime", asked_by="an export")
    for name in chosen:
        require_package(known[name].needs, asked_by=f"--formats={name}")
    return chosen


def _suggestions(name: str) -> Iterator[str]:
    return (one.name for one in export_formats().values() if name.casefold() in one.other_names)
