"""Model card beside exported files: `README.md` with the header of the Hugging Face Hub, and an image."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dataset.files.image_files import encode_image
from efficientdet.checkpoints.description import Description
from efficientdet.checkpoints.provenance import FILE_NAME
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.exports.artifact_table import TABLE_FILES, ArtifactTable
from object_detection.coco.measures import CocoMeasures, shown_measure
from program_support.atomic_files import report_write_errors, write_bytes, write_text

CARD, DRAWN_IMAGE = "README.md", "detections.jpg"
CARD_FILES = (CARD, DRAWN_IMAGE, FILE_NAME)  # beside the exported files


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
            *_accuracy(card.measures),
            "## Files",
            "",
            "| file | MB | ms per image |",
            "|---|---|---|",
            *(
                f"| `{line.file}` | {line.megabytes} | {'-' if line.median_ms is None else line.median_ms} |"
                for line in card.table.artifacts
            ),
            "",
            f"Milliseconds on {card.table.machine}; [artifacts.md](artifacts.md) has the comparison with the "
            "checkpoint.",
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


def _accuracy(measures: CocoMeasures | None) -> list[str]:
    if measures is None:
        return ["## Accuracy", "", "Not measured: `export.py --val_file_pattern='records/val-*'` measures it.", ""]
    numbers, objects = measures.numbers, sum(measures.class_objects.values())
    return [
        "## Accuracy",
        "",
        f"COCO metrics of the checkpoint on {measures.images} validation images with {objects} objects.",
        "",
        "| | objects | AP | 95 % interval |",
        "|---|---|---|---|",
        f"| all classes | {objects} | {shown_measure(numbers['AP'])}, AP50 {shown_measure(numbers['AP50'])}, "
        f"AP75 {shown_measure(numbers['AP75'])} | {measures.shown_interval('numbers', 'AP')} |",
        *(
            f"| {name} | {measures.class_objects[name]} | {shown_measure(ap)} | "
            f"{measures.shown_interval('class_ap', name)} |"
            for name, ap in measures.class_ap.items()
        ),
        "",
    ]


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
