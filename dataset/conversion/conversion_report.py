"""The report of a conversion: counts and findings per shard, their sum, and its output."""

import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataset.class_names import ClassNames, beside_records, note_of_alike_names
from dataset.conversion.annotations import ReportEntry
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import allowing_fraction, listed
from program_support.atomic_files import write_text
from program_support.errors import InputError

SMALL_AREA, MEDIUM_AREA = 32**2, 96**2  # square pixels, COCO's limits
REFUSED_REPORT = ".refused.report.json"
_FINDINGS = ("fixed", "skipped", "dropped", "noted")
_SHOWN_FINDINGS = 5


@dataclass(kw_only=True)
class Report:
    """Counts over records and all findings; the keys of `boxes_per_class` are category ids.

    `dropped` are images whose boxes were all skipped. `usable_per_class` counts boxes that are neither crowd nor
    difficult.
    """

    images: int = 0
    boxes: int = 0
    crowd_boxes: int = 0
    difficult_boxes: int = 0
    images_without_boxes: int = 0
    boxes_of_skipped_images: int = 0
    boxes_per_class: Counter[int] = field(default_factory=Counter)
    usable_per_class: Counter[int] = field(default_factory=Counter)
    boxes_per_size: Counter[str] = field(default_factory=Counter)
    fixed: list[ReportEntry] = field(default_factory=list)
    skipped: list[ReportEntry] = field(default_factory=list)
    dropped: list[ReportEntry] = field(default_factory=list)
    noted: list[ReportEntry] = field(default_factory=list)

    def add_image(self, objects: Iterable[Any]) -> None:
        """Count one record; objects have category_id, area in pixels, is_crowd and is_difficult."""
        count = 0
        for annotation in objects:
            count += 1
            self.boxes_per_class[annotation.category_id] += 1
            self.usable_per_class[annotation.category_id] += not (annotation.is_crowd or annotation.is_difficult)
            self.boxes_per_size[size_name(annotation.area)] += 1
            self.crowd_boxes += annotation.is_crowd
            self.difficult_boxes += annotation.is_difficult
        self.images += 1
        self.boxes += count
        self.images_without_boxes += not count

    def add(self, other: "Report") -> None:
        """Add the counts and findings of another part of the data set, such as a shard."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def skipped_count(self, kind: str) -> int:
        """Return the number of images or boxes that are not in the records, including boxes of skipped images."""
        along = self.boxes_of_skipped_images if kind == "box" else 0
        return sum(finding.kind == kind for finding in self.skipped) + along

    def to_json(self) -> dict:
        """Return the JSON content that is stored between runs of a conversion."""
        return vars(self) | {name: [asdict(finding) for finding in getattr(self, name)] for name in _FINDINGS}

    @classmethod
    def from_json(cls, content: dict) -> "Report":
        """Create a report from the content of `to_json`."""
        findings = {name: [ReportEntry(**entry) for entry in content[name]] for name in _FINDINGS}
        per_class = {
            name: Counter({int(key): value for key, value in content[name].items()})
            for name in ("boxes_per_class", "usable_per_class")
        }
        return cls(**{**content, **findings, **per_class, "boxes_per_size": Counter(content["boxes_per_size"])})


def size_name(area: float) -> str:
    """Return COCO's name for an area in square pixels: small, medium or large."""
    return "small" if area < SMALL_AREA else "medium" if area < MEDIUM_AREA else "large"


def check_fractions(
    report: Report, *, listed_images: int, listed_boxes: int, max_bad_fraction: float, before_reading: bool = False
) -> None:
    """Raise InputError, with counts and the first examples, if more than the allowed fraction is missing.

    before_reading: the images are not read yet, which may add to what is skipped.
    """
    refusals, needed = [], "0"
    for kind, total, plural in (("image", listed_images, "images"), ("box", listed_boxes, "boxes")):
        skipped = report.skipped_count(kind)
        if total and skipped / total > max_bad_fraction:
            needed = max(needed, allowing_fraction(skipped, total), key=float)
            causes = [finding for finding in report.skipped if finding.kind == kind] or report.skipped
            examples = "; ".join(_line(finding) for finding in causes[:3])
            examples += f"; and {len(causes) - 3} more" if len(causes) > 3 else ""
            refusals.append(
                f"{skipped} of {total} {plural} would be skipped, {skipped / total:.2%}; expected at most "
                f"{max_bad_fraction:.2%}: {examples}"
            )
    if refusals and (not report.images or needed == "1"):
        raise InputError(f"{refusals[0]}; nothing would be left: correct the labels, or give the images")
    if refusals:
        or_more = " or more, as the images are not read yet" if before_reading else ""
        raise InputError(f"{refusals[0]}; to accept this, set --max_bad_fraction={needed}{or_more}")
    if not report.images:
        raise InputError(f"all {listed_images} images would be skipped: {_line(report.skipped[0])}")


def refusal_with_report(
    error: InputError, report: Report, class_names: ClassNames | None, *, prefix: Path
) -> InputError:
    """Write all findings to `<prefix>.refused.report.json`; return the error with the name of that file.

    Its name differs from that of the report that marks a complete conversion.

    Raises:
        OSError: the report cannot be written.
    """
    path = prefix.with_name(prefix.name + REFUSED_REPORT)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"refused": str(error), **readable_report(report, class_names)}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return InputError(f"{error}; all items are listed in {path}")


def readable_report(report: Report, class_names: ClassNames | None) -> dict:
    """Return the content of `<prefix>.report.json`."""
    return {
        "images": report.images,
        "boxes": report.boxes,
        "crowd_boxes": report.crowd_boxes,
        "difficult_boxes": report.difficult_boxes,
        "images_without_boxes": report.images_without_boxes,
        "boxes_per_class": _per_class_name(report.boxes_per_class, class_names),
        "usable_boxes_per_class": _per_class_name(report.usable_per_class, class_names),
        "boxes_per_size": {name: report.boxes_per_size[name] for name in ("small", "medium", "large")},
        "images_skipped": report.skipped_count("image"),
        "boxes_skipped": report.skipped_count("box"),
        "images_dropped": len(report.dropped),
        **{
            name: [
                {key: value for key, value in asdict(finding).items() if value is not None}
                for finding in getattr(report, name)
            ]
            for name in _FINDINGS
        },
    }


def _per_class_name(counts: Counter[int], class_names: ClassNames | None) -> dict[str, int]:
    """Return the number of boxes of each class, including classes without boxes."""
    if class_names is None:
        return {}
    return {name: counts[category_id] for category_id, name in class_names.by_id().items()}


def left_out_at_conversion(record_paths: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return a line with file name and reason for each box, and for each image, that is not in the records.

    Reads the reports next to the records; records without a report are ignored.

    Raises:
        InputError: for an invalid report.
    """
    boxes: list[str] = []
    images: list[str] = []
    for path in sorted({beside_records(record, ".report.json") for record in record_paths}):
        if path.exists():
            content = read_json(str(path))
            try:
                for entry in [*content["skipped"], *content.get("dropped", ())]:
                    (images if entry["kind"] == "image" else boxes).append(f"{entry['file']}: {entry['reason']}")
            except (LookupError, TypeError) as error:
                raise InputError(f"{path}: is not a conversion report; convert again or delete it") from error
    return boxes, images


def _line(finding: ReportEntry) -> str:
    ids = [
        f"{name} {value}"
        for name, value in (("image", finding.image_id), ("annotation", finding.annotation_id))
        if value is not None
    ]
    return f"{finding.file}{' (' + ', '.join(ids) + ')' if ids else ''}: {finding.reason}"


def summary_lines(report: Report, class_names: ClassNames | None, *, labeled: Collection[str] = ()) -> list[str]:
    """Return a summary for the console: images, boxes, fixed and skipped items, objects per class.

    labeled: names of the classes that the images are labeled for; none: all.
    """
    sizes = ", ".join(f"{report.boxes_per_size[name]} {name}" for name in ("small", "medium", "large"))
    lines = [
        f"images   {report.images}, {report.images_without_boxes} of them without boxes",
        f"boxes    {report.boxes} ({sizes}), {report.crowd_boxes} crowds"
        + (f", {report.difficult_boxes} difficult" if report.difficult_boxes else ""),
    ]
    boxes = _per_class_name(report.boxes_per_class, class_names)
    per_class = sorted(boxes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {count}" for name, count in per_class[:12])
    if shown:
        without = sum(not count for _, count in per_class)
        lines.append(
            f"classes  {len(per_class)}: {shown}{', ...' if len(per_class) > 12 else ''}"
            + (f"; {without} without any box" if without else "")
        )
        if alike := note_of_alike_names([name for name, _ in per_class]):
            lines.append(f"warning: {alike}")
        if report.images == report.images_without_boxes > 0:
            lines.append(
                f"warning: none of the {report.images} images has a box: all count as images without objects; expected "
                "label files of this split, or no such split"
            )
    unusable = [
        f"{name} ({boxes[name]} boxes)"
        for name, count in _per_class_name(report.usable_per_class, class_names).items()
        if boxes[name] and not count and (not labeled or name in labeled)
    ]
    if unusable:
        lines.append(
            f"warning: {len(unusable)} of {len(boxes)} classes have only crowd or difficult boxes: {listed(unusable)}; "
            "training ignores crowds, evaluation both; to use them as objects, set --crowds_as_objects"
        )
    for title in _FINDINGS:
        if findings := getattr(report, title):
            kinds = Counter(finding.kind for finding in findings)
            lines.append(f"{title:8} " + ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())))
            lines += [f"         {_line(finding)}" for finding in findings[:_SHOWN_FINDINGS]]
            if len(findings) > _SHOWN_FINDINGS:
                lines.append(f"         ... and {len(findings) - _SHOWN_FINDINGS} more, listed in the report")
    return lines
