"""Results of a benchmark as a table, as a log, and as JSON."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from efficientdet.benchmark.latency import Latency

_LOG_UNITS = {
    "inference_fps": "images/s",
    "inference_latency_ms": "ms",
    "latency_avg": "s",
    "latency_90": "s",
    "latency_95": "s",
    "latency_99": "s",
}


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a console."""
    lines = [
        f"{name:<22} {report[name]}"
        for name in (
            "model",
            "weights",
            "runtime",
            "device",
            "load_average",
            "precision",
            "batch_size",
            "runs",
            "input",
        )
    ]
    lines.append(f"{'image_size':<22} {report['image_size'][0]} x {report['image_size'][1]}")
    lines.append(f"{'versions':<22} {', '.join(f'{name} {version}' for name, version in report['versions'].items())}")
    if report.get("candidates_per_image") is not None:
        lines.append(
            f"{'candidates_per_image':<22} {report['candidates_per_image']} above score {report['score_threshold']}"
        )
    lines.append(f"{'detections_per_image':<22} {report['detections_per_image']:.1f}")
    for place in ("host", "device"):
        peak = report[f"peak_{place}_memory_bytes"]
        lines.append(f"{f'peak {place} memory':<22} {'-' if peak is None else f'{peak / 2**20:.0f} MiB'}")
    heads = (*Latency._fields, "images/s", "compile s")
    lines += ["", f"{'ms per batch':<16}" + "".join(f"{head:>10}" for head in heads)]
    for stage, latency in report["latency_ms"].items():
        values = [*(latency[name] for name in Latency._fields), report["images_per_s"][stage]]
        values += [report["compile_s"][stage]] if stage in report["compile_s"] else []
        lines.append(f"{stage:<16}" + "".join(f"{value:>10.2f}" for value in values))
    return lines


def log_values(report: Mapping[str, Any]) -> dict[str, float]:
    """Return end-to-end values under the reference's names; latency_90 etc. are percentiles here."""
    latency = report["latency_ms"]["end_to_end"]
    return {
        "inference_fps": report["images_per_s"]["end_to_end"],
        "inference_latency_ms": latency["mean"],
        "latency_avg": latency["mean"] / 1000,
        **{f"latency_{percent}": latency[f"p{percent}"] / 1000 for percent in (90, 95, 99)},
    }


def write_report(report: Mapping[str, Any], *, log_file: str | None, output_json: str | None) -> None:
    """Write, if requested, the log in dllogger's format and the complete report as JSON."""
    if log_file:
        from efficientdet.run_log.journal import Journal

        path = Path(log_file)
        with Journal(path.parent, file_name=path.name, units=_LOG_UNITS) as journal:
            journal.log((), log_values(report))
    if output_json:
        Path(output_json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {output_json}")
