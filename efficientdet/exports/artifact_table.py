"""Table of exported files, as Markdown and JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from program_support.atomic_files import report_write_errors, write_text

MOST_LOST = 0.01  # loss of AP by int8 from which classes are listed
_HOW_TO_MEASURE = (
    "AP was not measured; use `--val_file_pattern='records/val-*'` to measure it for the checkpoint and files."
)
TABLE_FILES = ("artifacts.json", "artifacts.md")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """AP of a file on the validation records."""

    ap: float
    ap50: float
    ap_difference: float  # difference from the checkpoint's AP
    ap_difference_interval: tuple[float, ...]  # paired 95 % interval over the images; () if not computed
    class_losses: dict[str, float]  # loss of AP of the classes that lose more than `MOST_LOST`

    @property
    def change(self) -> str:
        """The difference from the checkpoint's AP, with its interval."""
        ends = self.ap_difference_interval
        return f"{self.ap_difference:+.4f}" + (f", 95 % interval {ends[0]:+.4f} to {ends[1]:+.4f}" if ends else "")


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A row of the table."""

    format: str
    file: str
    megabytes: float
    median_ms: float | None  # one image, resizing included; None if the file cannot be run here
    p99_ms: float | None
    network_ms: float | None  # the same without post-processing and resizing; None if not measured
    postprocessing_ms: float | None  # the additional time with post-processing
    compared: int  # detections of the checkpoint; anchors if the file cannot be run here
    agreement: float  # fraction that the file finds too: same class, all sides within half a pixel
    box_difference: float  # largest difference of agreeing boxes in pixels
    score_difference: float  # largest difference of scores
    quality: Quality | None = None
    edge_tpu: list[str] = field(default_factory=list)  # report of the operator check; [] if not checked


@dataclass(frozen=True, kw_only=True)
class ArtifactTable:
    """The table with its header."""

    model: str
    machine: str
    versions: dict[str, str]
    compared_in: str  # definition of agreement
    checkpoint: Quality | None
    validation_images: int
    calibration_images: int
    artifacts: Sequence[Artifact]

    def write(self, folder: str) -> None:
        """Write artifacts.json and artifacts.md.

        Raises:
            InputError: they cannot be written.
        """
        texts = json.dumps(asdict(self), indent=1) + "\n", self._markdown()
        for name, text in zip(TABLE_FILES, texts, strict=True):
            with report_write_errors(Path(folder, name)):
                write_text(Path(folder, name), text)

    def _markdown(self) -> str:
        measured = self.checkpoint is not None
        titles = [
            "format",
            "file",
            "MB",
            "median ms",
            "p99 ms",
            "network ms",
            "post-processing ms",
            "detections",
            "agree",
            "box differs by",
            "score differs by",
            *(["AP", "AP50", "AP less the checkpoint's"] if measured else []),
        ]
        lines = [
            f"# {self.model} as files",
            "",
            f"{self.machine}; " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
            "Milliseconds: an image resized and detected, batch 1; then the network and post-processing apart. "
            f"Agreement: {self.compared_in}.",
            _HOW_TO_MEASURE if self.checkpoint is None else self._measured(self.checkpoint),
            *([f"int8 calibration: {self.calibration_images} images."] if self.calibration_images else []),
            "",
            _row(titles),
            _row(["---"] * len(titles)),
            *(_row(_cells(line, columns=len(titles))) for line in self.artifacts),
        ]
        for line in self.artifacts:
            lines += _losses(line)
        return "\n".join(lines) + "\n"

    def _measured(self, checkpoint: Quality) -> str:
        return (
            f"AP of {self.validation_images} images of the validation records; the checkpoint has "
            f"AP {checkpoint.ap:.4f}, AP50 {checkpoint.ap50:.4f}."
        )


def _cells(line: Artifact, *, columns: int) -> list[str]:
    quality = line.quality
    measured = (line.median_ms, line.p99_ms, line.network_ms, line.postprocessing_ms)
    times = ["-" if value is None else f"{value}" for value in measured]
    return [
        line.format,
        line.file,
        f"{line.megabytes}",
        *times,
        f"{line.compared}",
        f"{line.agreement:.1%}",
        f"{line.box_difference:.2g}",
        f"{line.score_difference:.2g}",
        *([f"{quality.ap:.4f}", f"{quality.ap50:.4f}", quality.change] if quality else "---"),
    ][:columns]


def _losses(line: Artifact) -> list[str]:
    lines = []
    if line.quality and line.quality.class_losses:
        lines += [
            "",
            f"Classes with a lower AP in {line.file}: "
            + ", ".join(f"{name} {-lost:+.3f}" for name, lost in line.quality.class_losses.items())
            + ".",
        ]
    if line.edge_tpu:
        lines += ["", f"{line.file} by the documented list of the Edge TPU compiler, which was not run:", ""]
        lines += [f"    {text}" for text in line.edge_tpu]
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
