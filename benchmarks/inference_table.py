"""Reports of `inspector.py --mode=benchmark --output_json=FILE` as one table: `python benchmarks/inference_table.py FILE...`.

Beside each batch size stands what the reference publishes for one A100 in FP16 (D0 at 512, end to end, as here).
"""

import json
import sys
from pathlib import Path

A100_FP16_MS = {1: 26.31, 2: 49.75, 4: 50.12, 8: 52.16, 16: 57.83, 32: 68.75, 64: 90.63, 128: 161.65, 256: 298.33}


def table(reports: list[dict]) -> list[str]:
    """Markdown; end to end, uint8 images to detections."""
    lines = ["| batch | images/s | mean ms | p50 | p90 | p95 | p99 | network ms | reference, A100 FP16: ms | images/s |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for report in sorted(reports, key=lambda report: report["batch_size"]):
        batch, latency = report["batch_size"], report["latency_ms"]
        whole = latency["end_to_end"]
        network = f"{latency['network']['p50']:.2f}" if "network" in latency else "-"
        published = A100_FP16_MS.get(batch)
        theirs = f"{published:.2f} | {1000 * batch / published:.0f}" if published else "- | -"
        percentiles = " | ".join(f"{whole[name]:.2f}" for name in ("mean", "p50", "p90", "p95", "p99"))
        lines.append(f"| {batch} | {1000 * batch / whole['mean']:.1f} | {percentiles} | {network} | {theirs} |")
    first = reports[0]
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    setting = ", ".join(str(first[name]) for name in ("model", "image_size", "device", "runtime", "precision"))
    return [*lines, "", f"{setting}; {versions}"]


if __name__ == "__main__":
    print("\n".join(table([json.loads(Path(path).read_text()) for path in sys.argv[1:]])))
