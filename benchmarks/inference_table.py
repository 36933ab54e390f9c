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

_PUBLISHED = ("efficientdet-d0", [512, 512])
_MULTIPLY_ADDS = 2.5e9  # of the published model; hyperparameters change it
_PRECISIONS = {"mixed_float16": "amp", "float32": "tf32"}
_TIMES = ("mean", "p50", "p90", "p95", "p99")
_HEAD = f"| batch | images/s | {' ms | '.join(_TIMES)} ms | reference, A100: images/s | ratio |"


def published_figures(**values: str) -> list[dict[str, str]]:
    """Return the rows of published.csv with these values; what the source does not state is empty."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if values.items() <= row.items()]


def table(reports: list[dict]) -> list[str]:
    """Return the table in Markdown; end to end, uint8 images to detections."""
    lines = [_HEAD, "|" + "---|" * (_HEAD.count("|") - 1)]
    for report in sorted(reports, key=lambda report: report["batch_size"]):
        latency, reference = report["latency_ms"]["end_to_end"], _published(report)
        rate = 1000 * report["batch_size"] / latency["mean"]
        times = " | ".join(f"{latency[name]:.2f}" for name in _TIMES)
        compared = f"{reference:g} | {rate / reference:.2f}" if reference else "- | -"
        lines.append(f"| {report['batch_size']} | {rate:.1f} | {times} | {compared} |")
    names = ("model", "image_size", "device", "runtime", "precision", "versions")
    return [*lines, "", ", ".join(str(reports[0][name]) for name in names)]


def _published(report: Mapping[str, Any]) -> float | None:
    """Return the reference's images/s of the same work on an A100: model, input size, precision and batch size."""
    work = report["multiply_adds_per_image"] / _MULTIPLY_ADDS
    if (report["model"], report["image_size"]) != _PUBLISHED or abs(work - 1) > 0.1:
        return None
    values = {"precision": _PRECISIONS.get(report["precision"], ""), "batch_size": str(report["batch_size"])}
    rows = published_figures(model=report["model"], mode="inference", gpu="A100", **values)
    return float(rows[0]["images_per_second"]) if rows else None


if __name__ == "__main__":
    print("\n".join(table([json.loads(Path(path).read_text()) for path in sys.argv[1:]])))
