"""Print reports of `inspector.py --mode=benchmark --output_json=FILE` as one table.

Usage: `python benchmarks/inference_table.py FILE...`

Each batch size has the reference's published figure for one A100 in FP16 (D0 at 512, end to end, as here) and the ratio
of images/s, ours over theirs.
"""

import json
import sys
from pathlib import Path

from throughput.published import published_figures


def table(reports: list[dict]) -> list[str]:
    """Return the table in Markdown; end to end, uint8 images to detections."""
    published = {
        row.batch_size: row
        for row in published_figures(model="efficientdet-d0", mode="inference")
        if (row.gpu, row.precision) == ("A100", "amp")
    }
    lines = [
        "| batch | images/s | mean ms | p50 | p90 | p95 | p99 | network ms | reference, A100 FP16: ms | images/s | "
        "speed-up |",
        "|" + "---|" * 11,
    ]
    for report in sorted(reports, key=lambda report: report["batch_size"]):
        batch, latency = report["batch_size"], report["latency_ms"]
        end_to_end = latency["end_to_end"]
        rate = 1000 * batch / end_to_end["mean"]
        network = f"{latency['network']['p50']:.2f}" if "network" in latency else "-"
        theirs = published.get(batch)
        beside = (
            f"{theirs.latency_ms:.2f} | {theirs.images_per_second:g} | {rate / theirs.images_per_second:.2f}"
            if theirs
            else "- | - | -"
        )
        percentiles = " | ".join(f"{end_to_end[name]:.2f}" for name in ("mean", "p50", "p90", "p95", "p99"))
        lines.append(f"| {batch} | {rate:.1f} | {percentiles} | {network} | {beside} |")
    first = reports[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    setting = ", ".join(str(first[name]) for name in ("model", "image_size", "device", "runtime", "precision"))
    return [*lines, "", f"{setting}; {versions}"]


if __name__ == "__main__":
    print("\n".join(table([json.loads(Path(path).read_text()) for path in sys.argv[1:]])))
