"""Print reports of `inspector.py --mode=benchmark --output_json=FILE` as one table.

Usage: `python benchmarks/inference_table.py FILE...`

Reports of the work that the reference's README has figures of (D0 at 512 x 512, in FP16 or TF32) are shown beside its
figures for one A100, with the ratio of images/s, ours over theirs. Both are end to end: uint8 images to detections.
"""

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MODEL, _SIZE, _MULTIPLY_ADDS = "efficientdet-d0", [512, 512], 2.5e9  # the published model; hyperparameters change it
_PRECISIONS = {"mixed_float16": ("amp", "FP16"), "float32": ("tf32", "TF32")}


def published_figures(**values: str) -> list[dict[str, str]]:
    """Return the rows of published.csv with these values; what the source does not state is empty."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if values.items() <= row.items()]


def table(reports: list[dict]) -> list[str]:
    """Return the table in Markdown; end to end, uint8 images to detections."""
    reports = sorted(reports, key=lambda report: report["batch_size"])
    published = [_published(report) for report in reports]
    heads = ["batch", "images/s", "mean ms", "p50", "p90", "p95", "p99", "network ms"]
    if any(published):
        heads += [f"reference, A100 {_PRECISIONS[reports[0]['precision']][1]}: ms", "images/s", "ratio of images/s"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for report, reference in zip(reports, published, strict=True):
        latency = report["latency_ms"]
        rate = 1000 * report["batch_size"] / latency["end_to_end"]["mean"]
        cells = [str(report["batch_size"]), f"{rate:.1f}"]
        cells += [f"{latency['end_to_end'][name]:.2f}" for name in ("mean", "p50", "p90", "p95", "p99")]
        cells.append(f"{latency['network']['p50']:.2f}" if "network" in latency else "-")
        if reference:
            latency_ms, images_per_second = float(reference["latency_ms"]), float(reference["images_per_second"])
            cells += [f"{latency_ms:.2f}", f"{images_per_second:g}", f"{rate / images_per_second:.2f}"]
        lines.append(f"| {' | '.join(cells + ['-'] * (len(heads) - len(cells)))} |")
    first = reports[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    setting = ", ".join(str(first[name]) for name in ("model", "image_size", "device", "runtime", "precision"))
    lines += ["", f"{setting}; {versions}"]
    if not any(published):
        lines.append(
            "no published figures of this work: the reference's are of efficientdet-d0 at 512 x 512 in FP16 and TF32"
        )
    return lines


def _published(report: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the reference's figures of the same work on an A100: model, input size, precision and batch size."""
    work = report.get("multiply_adds_per_image", _MULTIPLY_ADDS)
    is_equal = report["model"] == _MODEL and report["image_size"] == _SIZE and abs(work / _MULTIPLY_ADDS - 1) < 0.1
    if not is_equal or report["precision"] not in _PRECISIONS:
        return None
    work_of = {"precision": _PRECISIONS[report["precision"]][0], "batch_size": str(report["batch_size"])}
    return next(iter(published_figures(model=_MODEL, mode="inference", gpu="A100", **work_of)), None)


if __name__ == "__main__":
    print("\n".join(table([json.loads(Path(path).read_text()) for path in sys.argv[1:]])))
