"""The table beside exported files: artifacts.json, and README.md with the header of a model card of the Hub."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.provenance import FILE_NAME
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from program_support.atomic_files import report_write_errors, write_text

MOST_LOST = 0.01  # loss of AP by int8 from which classes are listed
TABLE_FILES = ("artifacts.json", "README.md")
_COLUMNS = ("format", "file", "MB", "median ms", "p99 ms", "detections", "agree", "box differs by", "score differs by")
_QUALITY = ("AP", "AP50", "AP less the checkpoint's")


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
    compared: int  # detections of the checkpoint
    agreement: float  # fraction that the file finds too: same class, all sides within half a pixel
    box_difference: float  # largest difference of agreeing boxes in pixels
    score_difference: float  # largest difference of scores
    quality: Quality | None = None


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

    def write(self, folder: str, description: Description) -> None:
        """Write artifacts.json, and README.md with the table and what its users must know of the model.

        Raises:
            InputError: they cannot be written.
        """
        texts = json.dumps(asdict(self), indent=1) + "\n", "\n".join([*self._card(description), *self._lines()]) + "\n"
        for name, text in zip(TABLE_FILES, texts, strict=True):
            with report_write_errors(Path(folder, name)):
                write_text(Path(folder, name), text)

    def _card(self, description: Description) -> list[str]:
        """Return the lines of a model card, https://huggingface.co/docs/hub/model-cards."""
        names = [category["name"] for category in description.categories]
        shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        header: dict[str, Any] = {
            "library_name": "efficientdet-tf2",
            "pipeline_tag": "object-detection",
            "tags": ["object-detection", self.model],
        }
        if self.checkpoint:
            metrics = {"AP": self.checkpoint.ap, "AP50": self.checkpoint.ap50}
            result = {
                "task": {"type": "object-detection"},
                "dataset": {"name": "validation images", "type": "custom"},
                "metrics": [{"type": name, "value": round(value, 4)} for name, value in metrics.items()],
            }
            header["model-index"] = [{"name": self.model, "results": [result]}]
        return [
            "---",
            yaml.safe_dump(header, sort_keys=False, allow_unicode=True).strip(),
            "---",
            "",
            f"# {self.model}: {shown}",
            "",
            f"Input size {description.hparams['image_size']}, {len(names)} classes. "
            f"Score threshold: {ScoreThresholds.stored_in(description)}.",
            "",
            "```python",
            "import efficientdet",
            "",
            f'detections = efficientdet.load_detector("{self.artifacts[0].file}").predict("image.jpg")',
            "```",
            "",
            *([f"{tiling_note(description)}.", ""] if description.tiling else []),
            f"[{FILE_NAME}]({FILE_NAME}) has its training and the checksums of all files. License: not stated; it "
            "depends on the training images and on the weights that the training started from.",
            "",
        ]

    def _lines(self) -> list[str]:
        titles: tuple[str, ...] = _COLUMNS
        measured = "AP was not measured; use `--val_file_pattern='records/val-*'` to measure it."
        if self.checkpoint:
            titles += _QUALITY
            measured = (
                f"AP of {self.validation_images} images of the validation records; the checkpoint has "
                f"AP {self.checkpoint.ap:.4f}, AP50 {self.checkpoint.ap50:.4f}."
            )
        lines = [
            f"{self.machine}; " + ", ".join(f"{name} {version}" for name, version in self.versions.items()) + ".",
            f"Milliseconds: an image resized and detected, batch 1. Agreement: {self.compared_in}.",
            measured,
            *([f"int8 calibration: {self.calibration_images} images."] if self.calibration_images else []),
            "",
            *(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles))),
            *(f"| {' | '.join(_cells(line)[: len(titles)])} |" for line in self.artifacts),
        ]
        for line in self.artifacts:
            if line.quality and line.quality.class_losses:
                losses = ", ".join(f"{name} {-lost:+.3f}" for name, lost in line.quality.class_losses.items())
                lines += ["", f"Classes with a lower AP in {line.file}: {losses}."]
        return lines


def _cells(line: Artifact) -> list[str]:
    quality = line.quality
    return [
        line.format,
        line.file,
        f"{line.megabytes}",
        *("-" if value is None else f"{value}" for value in (line.median_ms, line.p99_ms)),
        f"{line.compared}",
        f"{line.agreement:.1%}",
        f"{line.box_difference:.2g}",
        f"{line.score_difference:.2g}",
        *([f"{quality.ap:.4f}", f"{quality.ap50:.4f}", quality.change] if quality else "---"),
    ]


def tiling_note(description: Description) -> str:
    """Return what users of the files of a model that was trained on tiles must know."""
    return (
        f"Trained on {description.tiling}: load_detector, infer.py, eval.py and serve.py detect in them and merge what "
        "they find; other programs, and the web page, are given a complete image and must do this themselves"
    )


def files_to_publish(folder: str | Path) -> list[str]:
    """Return the files of an export, relative to its folder: those of the last call of export.py and what it wrote."""
    exported = json.loads(Path(folder, FILE_NAME).read_text(encoding="utf-8"))["exported"]["files"]
    return [*TABLE_FILES, FILE_NAME, *exported]
