"""Interface of a format of exported detectors."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from efficientdet.configuration.model_config import require_package
from program_support.errors import InputError

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detect, Detector
    from model.detection_model import DetectionModel


class ExportFormat:
    """A format of export.py: writes a detector, opens what it wrote, and describes it.

    Attributes:
        name: value of `--formats`.
        file: name of the written file or folder.
        other_names: names of the format in other projects, for which it is suggested.
        needs: package that runs the file here.
        needs_tensorflow: whether it is written by TensorFlow.
        calibrates: whether it has 8 bits, whose ranges are determined on calibration images.
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
        """Return all files that `write` wrote. Default: the file, or the files in the folder."""
        return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]

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

    def open(self, path: str, *, runtime: str = "keras") -> "Detector":
        """Open a file with the result of `runtime_of`.

        Raises:
            InputError: for other files.
        """
        raise NotImplementedError

    def open_for(self, restored: "Restored", path: Path) -> "Detect | None":
        """Return the detection of a written file, with the post-processing of its checkpoint if it has none.

        None if the file cannot be run here. Default: `open`, or None with `runs_in`.
        """
        return None if self.runs_in else self.open(str(path), runtime=self.needs).detect
