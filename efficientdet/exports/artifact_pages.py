"""Pages beside exported files: artifacts.md and .json, and a model card with the header of the Hugging Face Hub."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dataset.files.image_files import encode_image
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.provenance import FILE_NAME
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from object_detection.coco.measures import CocoMeasures
from program_support.atomic_files import report_write_errors, write_bytes, write_text

MOST_LOST = 0.01  # loss of AP by int8 from which classes are listed
TABLE_FILES = ("artifacts.json", "artifacts.md")
CARD, DRAWN_IMAGE = "README.md", "detections.jpg"
CARD_FILES = (CARD, DRAWN_IMAGE, FILE_NAME)  # beside the exported files


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
        titles = [
            "format",
            "file",
            "MB",
            "median ms",
            "p99 ms",
            "detections",
            "agree",
            "box differs by",
            "score differs by",
        ]
        measured = "AP was not measured; use `--val_file_pattern='records/val-*'` to measure it."
        if self.checkpoint:
            titles += ["AP", "AP50", "AP less the checkpoint's"]
            measured = (
                f"AP of {self.validation_images} images of the validation records; the checkpoint has "
                f"AP {self.checkpoint.ap:.4f}, AP50 {self.checkpoint.ap50:.4f}."
            )
        lines = [
            f"# {self.model} as files",
            "",
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
        return "\n".join(lines) + "\n"


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


@dataclass(frozen=True)
class ModelCard:
    """Content of a model card. `measures`: of the checkpoint on the validation records; None if not measured."""

    description: Description
    table: ArtifactTable
    provenance: dict[str, Any]
    measures: CocoMeasures | None
    image: np.ndarray  # uint8 [h, w, 3], an image with detections


def write_model_card(folder: Path, card: ModelCard) -> None:
    """Write README.md and detections.jpg.

    Raises:
        InputError: they cannot be written.
    """
    with report_write_errors(folder / DRAWN_IMAGE):
        write_bytes(folder / DRAWN_IMAGE, encode_image(card.image, "JPEG"))
    with report_write_errors(folder / CARD):
        write_text(folder / CARD, _markdown(card))


def tiling_note(description: Description) -> str:
    """Return what users of the files of a model that was trained on tiles must know."""
    return (
        f"Trained on {description.tiling}: load_detector, infer.py, eval.py and serve.py detect in them and merge what "
        "they find; other programs, and the web page, are given a complete image and must do this themselves"
    )


def files_to_publish(folder: str | Path) -> list[str]:
    """Return the files of an export, relative to its folder: those of the last call of export.py and what it wrote."""
    exported = json.loads(Path(folder, FILE_NAME).read_text(encoding="utf-8"))["exported"]["files"]
    return [*CARD_FILES, *TABLE_FILES, *exported]


def _markdown(card: ModelCard) -> str:
    description, best = card.description, card.table.artifacts[0]
    names = [category["name"] for category in description.categories]
    size = description.hparams["image_size"]
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    return "\n".join(
        [
            "---",
            yaml.safe_dump(_header(card), sort_keys=False, allow_unicode=True).strip(),
            "---",
            "",
            f"# {description.model_name}: {shown}",
            "",
            f"![Detections]({DRAWN_IMAGE})",
            "",
            f"Object detector `{description.model_name}`, input size {size}, {len(names)} classes: {shown}.",
            "",
            "## Use",
            "",
            "```python",
            "import efficientdet",
            "",
            f'detections = efficientdet.load_detector("{best.file}").predict("image.jpg")',
            "```",
            "",
            f"Score threshold: {ScoreThresholds.stored_in(description)}.",
            "",
            *([f"{tiling_note(description)}.", ""] if description.tiling else []),
            "Intended for images of the kind that it was trained on. On others its accuracy is unknown: measure it by "
            "`eval.py` before you rely on it.",
            "",
            "[artifacts.md](artifacts.md) has AP, size and time of each file, and its agreement with the checkpoint.",
            "",
            "## Origin",
            "",
            *_origin(card.provenance),
            "",
            "## License",
            "",
            "Not stated. It depends on the training images and on the weights that the training started from.",
            "",
        ]
    )


def _header(card: ModelCard) -> dict[str, Any]:
    """Return the metadata of the Hub, https://huggingface.co/docs/hub/model-cards."""
    header: dict[str, Any] = {
        "library_name": "efficientdet-tf2",
        "pipeline_tag": "object-detection",
        "tags": ["object-detection", card.description.model_name],
    }
    if card.measures:
        metrics = [{"type": name, "value": round(card.measures.numbers[name], 4)} for name in ("AP", "AP50", "AP75")]
        result = {
            "task": {"type": "object-detection"},
            "dataset": {"name": "validation images", "type": "custom"},
            "metrics": metrics,
        }
        header["model-index"] = [{"name": card.description.model_name, "results": [result]}]
    return header


def _origin(provenance: dict[str, Any]) -> list[str]:
    if "code" not in provenance:
        return [f"Its training is not recorded. [{FILE_NAME}]({FILE_NAME}) has the checksums of all files."]
    files = provenance["files"]
    start = [*files.get("pretrained_ckpt", ()), *files.get("backbone_init", ())]
    return [
        f"{provenance['last_step']} steps of {provenance['batch_size']} images per process, seed "
        f"{provenance['seed']}, from {f'`{Path(start[0]).name}`' if start else 'random weights'}; "
        f"{provenance['code']}. [{FILE_NAME}]({FILE_NAME}) has the settings, and the checksums of the training records "
        "and of all files."
    ]
