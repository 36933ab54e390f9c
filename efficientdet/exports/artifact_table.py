"""What is said of exported files: one table as Markdown and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from program_support.atomic_files import telling_write_errors, write_text

MOST_LOST = 0.01  # of AP, by 8 bits, before it is reported where
_HOW_TO_MEASURE = "AP was not measured: `--val_file_pattern='records/val-*'` measures it, of the checkpoint and of each file."
_MOST_LISTED = 10


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What a file finds of the objects in the validation records."""

    ap: float
    ap50: float
    ap_difference: float  # from the checkpoint's
    class_losses: dict[str, float]  # AP that the checkpoint has and the file has not, of classes where it is `MOST_LOST`


@dataclass(frozen=True, kw_only=True)
class QuantizationLoss:
    """Where 8 bits cost most: decibels of signal over noise, the lowest first."""

    layers: dict[str, float]  # what convolutions put out, over all calibration images
    images: dict[str, float]  # what the last convolutions put out, by calibration image


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A line of the table."""

    format: str
    file: str
    megabytes: float
    median_ms: float | None  # of an image, resized and detected; None of a file that nothing here runs as a whole
    p99_ms: float | None
    compared: int  # detections of the checkpoint; of a file that nothing here runs, anchors
    agreement: float  # share of these that the file finds too: the class, all sides within half a pixel
    box_difference: float  # the largest of those that agree, pixels
    score_difference: float  # the largest
    quality: Quality | None = None
    loss: QuantizationLoss | None = field(default=None)


@dataclass(frozen=True, kw_only=True)
class ArtifactTable:
    """All of it."""

    model: str
    machine: str
    versions: dict[str, str]
    compared_in: str  # which detections count as the same
    checkpoint: Quality | None
    validation_images: int
    calibration_images: int
    artifacts: Sequence[Artifact]

    def write(self, folder: str) -> None:
        """artifacts.json and artifacts.md. Raises InputError where they cannot be written."""
        for name, text in (("artifacts.json", json.dumps(asdict(self), indent=1) + "\n"), ("artifacts.md", self._markdown())):
            with telling_write_errors(Path(folder, name)):
                write_text(Path(folder, name), text)

    def _markdown(self) -> str:
        measured = self.checkpoint is not None
        titles = ["format", "file", "MB", "median ms", "p99 ms", "detections", "agree", "box differs by", "score differs by",
                  *(["AP", "AP50", "AP less the checkpoint's"] if measured else [])]
        lines = [f"# {self.model} as files", "",
                 f"{self.machine}; " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
                 f"Milliseconds: an image resized and detected, batch 1. Agreement: {self.compared_in}.",
                 self._measured() if measured else _HOW_TO_MEASURE,
                 *([f"Ranges of 8 bits are those of {self.calibration_images} images."] if self.calibration_images else []),
                 "",
                 _row(titles), _row(["---"] * len(titles)),
                 *(_row(_cells(line, columns=len(titles))) for line in self.artifacts)]
        for line in self.artifacts:
            lines += _losses(line)
        return "\n".join(lines) + "\n"

    def _measured(self) -> str:
        return (f"AP of {self.validation_images} images of the validation records; the checkpoint has "
                f"{self.checkpoint.ap:.4f}, AP50 {self.checkpoint.ap50:.4f}.")


def _cells(line: Artifact, *, columns: int) -> list[str]:
    quality = line.quality
    times = ["-" if value is None else f"{value}" for value in (line.median_ms, line.p99_ms)]
    return [line.format, line.file, f"{line.megabytes}", *times, f"{line.compared}", f"{line.agreement:.1%}",
            f"{line.box_difference:.2g}", f"{line.score_difference:.2g}",
            *([f"{quality.ap:.4f}", f"{quality.ap50:.4f}", f"{quality.ap_difference:+.4f}"] if quality else "---")][:columns]


def _losses(line: Artifact) -> list[str]:
    lines = []
    if line.quality and line.quality.class_losses:
        lines += ["", f"Classes that lose in {line.file}: " + ", ".join(
            f"{name} {-lost:+.3f}" for name, lost in line.quality.class_losses.items()) + "."]
    if line.loss:
        for title, entries in (("layer (what its convolution puts out)", line.loss.layers),
                               ("calibration image (what the last convolutions put out)", line.loss.images)):
            lines += ["", _row([f"{line.file}: {title}", "signal to noise, dB"]), _row(["---"] * 2)]
            lines += [_row([name, f"{value:.1f}"]) for name, value in list(entries.items())[:_MOST_LISTED]]
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
