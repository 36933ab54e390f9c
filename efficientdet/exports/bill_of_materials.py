"""Bill of materials beside exported files: `bom.cdx.json`, an ML-BOM of CycloneDX 1.6 (https://cyclonedx.org/).

cyclonedx-python-lib 11 has no model card, which the schema defines; hence the JSON is written here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from efficientdet.exports.model_card import BILL_OF_MATERIALS, ModelCard
from object_detection.coco.measures import MEASURE_NAMES, CocoMeasures
from program_support.atomic_files import report_write_errors, write_text


def write_bill_of_materials(folder: Path, card: ModelCard) -> None:
    """Write bom.cdx.json: the model with its metrics, data, exported files and the packages that computed it.

    Raises:
        InputError: it cannot be written.
    """
    with report_write_errors(path := folder / BILL_OF_MATERIALS):
        write_text(path, json.dumps(_bill_of_materials(card), indent=1) + "\n")


def _bill_of_materials(card: ModelCard) -> dict[str, Any]:
    provenance, name = card.provenance, card.description.model_name
    exported = provenance["exported"]
    files = {"weights": provenance["weights"], **provenance.get("files", {})}
    used = [one for kind, sums in files.items() for one in _files(kind, sums, "data" if "records" in kind else "file")]
    model = {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": name,
        "modelCard": {
            "modelParameters": {
                "approach": {"type": "supervised"},
                "task": "object-detection",
                "modelArchitecture": name,
                "datasets": [{"ref": one["bom-ref"]} for one in used if one["type"] == "data"],
            },
            "quantitativeAnalysis": {"performanceMetrics": list(_metrics(card.measures)) if card.measures else []},
            "properties": [{"name": "confidence of the intervals", "value": "0.95"}],
        },
    }
    code = {"type": "application", "name": "efficientdet-tf2", "version": provenance.get("code", exported["code"])}
    packages = provenance.get("machine", exported["machine"])["packages"]
    libraries = [{"type": "library", "name": one, "version": version} for one, version in packages.items()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": model},
        "components": [*_files("exported", exported["files"], "file"), *used, code, *libraries],
    }


def _files(kind: str, sums: Mapping[str, str], component: str) -> Iterator[dict[str, Any]]:
    for name, digest in sums.items():
        hashes = [{"alg": "SHA-256", "content": digest}]
        yield {"type": component, "bom-ref": f"{kind}/{name}", "group": kind, "name": name, "hashes": hashes}


def _metrics(measures: CocoMeasures) -> Iterator[dict[str, Any]]:
    """Yield AP, AP50 and AP75 of all classes and AP of each class, except those without objects."""
    entries = [("numbers", name, measures.numbers[name], {"type": name}) for name in MEASURE_NAMES[:3]]
    entries += [("class_ap", name, ap, {"type": "AP", "slice": name}) for name, ap in measures.class_ap.items()]
    for field, name, value, labels in entries:
        ends = measures.intervals.get(field, {}).get(name)
        interval = {"lowerBound": f"{ends[0]:.4f}", "upperBound": f"{ends[1]:.4f}"} if ends else None
        if value >= 0:
            yield {**labels, "value": f"{value:.4f}", **({"confidenceInterval": interval} if interval else {})}
