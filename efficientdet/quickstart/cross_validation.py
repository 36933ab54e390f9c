"""Cross-validation of a quick start: the detections of each fold's model in its held-out images, measured together.

The folds are shards of the training records (`create_tfrecord.py --folds`).
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import store_thresholds
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.split_records import fold_pattern, image_count, pattern_below, records_pattern
from efficientdet.reports.html_page import Curve, chart_figure, document, heading, paragraph, row, section, table
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.atomic_files import write_text
from program_support.claimed_outputs import claim_folder

FOLDER = "cross_validation"
_EPOCH_METRICS = re.compile(r"metrics-(\d+)\.json")
_SHOWN = ("AP", "AP50", "AP75")


def fold_folder(folder: Path, fold: int) -> Path:
    """Return the folder of a fold's models and detections."""
    return folder / FOLDER / f"fold_{fold}"


def evaluate_folds(folder: Path, folds: int) -> dict[str, Any]:
    """Evaluate the detections of all folds together; write them, the ground truth and a page. Return the summary.

    In the folder `cross_validation`: detections.json (COCO's results of all images of the folds), instances.json (their
    ground truth), metrics.json, `evaluation` and `suspects` (of these detections), report.html and folds.json (the
    summary).
    """
    output = claim_folder(folder / FOLDER)
    run_program(
        "eval",
        {
            "results": pattern_below(output, f"fold_*/{TESTDEV_FILE_NAME}"),
            "val_file_pattern": records_pattern(folder, "train"),
            "testdev_dir": output,
            "report": claim_folder(output / "evaluation"),
            "output_json": output / "metrics.json",
            "suspects": claim_folder(output / "suspects"),
            "calibrate_scores": True,
        },
    )
    os.replace(output / TESTDEV_FILE_NAME, output / "detections.json")
    shutil.copyfile(folder / "records" / "train.instances.json", output / "instances.json")
    together = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    each = [_results(folder, fold) for fold in range(folds)]
    values = [fold["AP"] for fold in each]
    summary: dict[str, Any] = {
        "folds": each,
        "together": {name: together[name] for name in _SHOWN},
        "interval": together.get("intervals", {}).get("numbers", {}).get("AP"),
        "mean_ap": float(np.mean(values)),
        "standard_error": float(np.std(values, ddof=1) / folds**0.5),
        "epochs": best_epochs([fold["evaluations"] for fold in each]),
    }
    write_text(output / "folds.json", json.dumps(summary, indent=1) + "\n")
    write_text(output / "report.html", _page(summary))
    return summary


def shown_interval(summary: Mapping[str, Any]) -> str:
    """Return the 95 % interval of the AP of all folds together, in brackets; empty if it is unknown."""
    ends = summary.get("interval")
    return f" (95 % interval {ends[0]:.3f} to {ends[1]:.3f})" if ends else ""


def best_epochs(evaluations: Sequence[Mapping[int, float]]) -> int:
    """Return the epochs of a training on all images: those of the highest mean AP, more by the images of a fold.

    The candidates are the epochs after which every fold was evaluated, and the folds' last ones, whose number is their
    median. A passing of all images by k folds is 1 - 1/k of one by all.

    Args:
        evaluations: AP of each fold after each evaluated epoch.
    """
    lasts = [max(fold) for fold in evaluations]
    shared = set.intersection(*(set(fold) for fold in evaluations))
    means = {epoch: float(np.mean([fold[epoch] for fold in evaluations])) for epoch in shared}
    at_end = round(float(np.median(lasts)))
    means[at_end] = float(np.mean([fold[last] for fold, last in zip(evaluations, lasts, strict=True)]))
    best = max(means, key=lambda epoch: (means[epoch], epoch))
    return round(best * Fraction(len(evaluations), len(evaluations) - 1))


def store_thresholds_of_folds(folder: Path) -> None:
    """Store score thresholds and calibration of the held-out images with the model of all images, which has none."""
    thresholds = json.loads((folder / FOLDER / "metrics.json").read_text(encoding="utf-8"))["score_thresholds"]
    if thresholds:
        store_thresholds(checkpoint_prefix(str(folder / "model")), thresholds)


def _results(folder: Path, fold: int) -> dict[str, Any]:
    """Return the number of held-out images, the final metrics, and the AP after each evaluated epoch."""
    model = fold_folder(folder, fold) / "model"
    metrics = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in model.glob("metrics-*.json")}
    return {
        "images": image_count(fold_pattern(folder, fold)),
        **{name: metrics["metrics-final.json"][name] for name in _SHOWN},
        "evaluations": {
            int(match[1]): content["AP"]
            for name, content in sorted(metrics.items())
            if (match := _EPOCH_METRICS.fullmatch(name))
        },
    }


def _page(summary: Mapping[str, Any]) -> str:
    """Return the page of the folds as HTML."""
    folds, together = summary["folds"], summary["together"]
    curves: dict[str, Curve] = {
        f"Fold {number}": sorted(fold["evaluations"].items()) for number, fold in enumerate(folds)
    }
    rows = [
        (f"Fold {number}", fold["images"], max(fold["evaluations"]), *(fold[name] for name in _SHOWN))
        for number, fold in enumerate(folds)
    ]
    title = f"Cross-validation with {len(folds)} folds"
    return document(
        title,
        [
            heading(
                title,
                figure=" \N{NO-BREAK SPACE} ".join(f"{name} {value:.3f}" for name, value in together.items()),
                lead=f"Of the detections in all {sum(fold['images'] for fold in folds):,} images, each by the model "
                f"that was trained without its fold{shown_interval(summary)}.",
            ),
            section(
                "Folds",
                paragraph(
                    f"Mean AP {summary['mean_ap']:.3f}, standard error {summary['standard_error']:.3f}. The "
                    "trainings of the folds share images, so that the true standard error is larger."
                )
                + table(("", "Held-out images", "Epochs", *_SHOWN), rows, label="Folds"),
            ),
            section(
                "Epochs",
                row([chart_figure("AP of held-out images", curves, x_label="Epoch", y_label="AP (IoU 0.50:0.95)")])
                + paragraph(f"The training on all images has at most {summary['epochs']} epochs."),
            ),
            section("Details", paragraph("evaluation/report.html: errors, curves and images of all folds together.")),
        ],
    )
