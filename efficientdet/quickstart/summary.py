"""The summary that a quick start prints at its end."""

import json
import shlex
from pathlib import Path
from typing import Any

from efficientdet.quickstart.cross_validation import FOLDER, shown_interval
from efficientdet.quickstart.initial_weights import InitialWeights
from efficientdet.quickstart.output_folder import METRICS


def print_summary(
    folder: Path, *, folds: dict[str, Any] | None, weights: InitialWeights, measured_on: str | None, image_folder: Path
) -> None:
    """Print the AP, the initial weights, the files for the user and the next commands.

    Args:
        folder: output folder.
        folds: summary of `evaluate_folds`; None without folds.
        weights: initial weights.
        measured_on: split that metrics.json is of; None without it.
        image_folder: a folder of images to annotate.
    """
    artifact, numbers = folder / "exported" / "detector.onnx", {}
    print()
    if folds:
        print(
            f"AP {folds['together']['AP']:.3f}{shown_interval(folds)}, AP50 {folds['together']['AP50']:.3f} on the "
            f"held-out images of {len(folds['folds'])} folds; mean AP of the folds {folds['mean_ap']:.3f}, standard "
            f"error {folds['standard_error']:.3f}"
        )
    if measured_on:
        numbers = json.loads((folder / METRICS).read_text(encoding="utf-8"))
        print(f"AP {numbers['AP']:.3f}, AP50 {numbers['AP50']:.3f} on the {measured_on} images")
    print(weights.line)
    if masks := numbers.get("mask_numbers"):
        print(f"mask AP {masks['AP']:.3f}, AP50 {masks['AP50']:.3f}")
    for path, what in (
        ("doctor/doctor.html", "data check"),
        (f"{FOLDER}/report.html", "cross-validation"),
        (f"{FOLDER}/suspects/suspects.html", "labels that are probably wrong"),
        ("model/report.html", "training report"),
        ("evaluation/report.html", "evaluation report"),
        ("exported/artifacts.md", "exported files"),
    ):
        if (folds or not path.startswith(FOLDER)) and (measured_on or not path.startswith("evaluation")):
            print(f"  {folder / path}: {what}")
    if artifact.exists():
        model, images, annotated = (shlex.quote(str(path)) for path in (artifact, image_folder, folder / "annotated"))
        print(
            f"annotate images:  python infer.py --model={model} --image_path={images} --output_dir={annotated}\n"
            f"in the browser:   python serve.py --model={model}"
        )
