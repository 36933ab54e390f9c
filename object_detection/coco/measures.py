"""The results of an evaluation: the 12 COCO metrics, AP per class, and their intervals."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from object_detection.coco.score_calibration import ScoreCalibration

MEASURES = {  # name -> definition
    "AP": "precision, IoU 0.50 to 0.95",
    "AP50": "precision, IoU 0.50",
    "AP75": "precision, IoU 0.75",
    "APs": "precision, objects < 32x32 px",
    "APm": "precision, objects 32x32 to 96x96 px",
    "APl": "precision, objects > 96x96 px",
    "ARmax1": "recall, 1 detection per image",
    "ARmax10": "recall, 10 detections per image",
    "ARmax100": "recall, 100 detections per image",
    "ARs": "recall, objects < 32x32 px",
    "ARm": "recall, objects 32x32 to 96x96 px",
    "ARl": "recall, objects > 96x96 px",
}
MEASURE_NAMES = tuple(MEASURES)


@dataclass(frozen=True, kw_only=True)
class CocoMeasures:
    """Results of an evaluation. Every number lies in 0 .. 1, or is -1 if there is no object to find."""

    numbers: dict[str, float]  # the 12 of MEASURE_NAMES
    class_ap: dict[str, float]  # AP per class, by name
    class_objects: dict[str, int]  # number of objects, without crowds and difficult ones
    images: int  # number of evaluated images
    unknown_images: int  # evaluated images that are not in the ground truth
    detections: int
    explanation: str  # the likely cause of an AP of 0 or -1, otherwise empty
    mask_numbers: dict[str, float] = field(default_factory=dict)  # the 12 of masks (COCO's "segm"); empty without masks
    mask_class_ap: dict[str, float] = field(default_factory=dict)  # AP of masks per class, by name
    mask_explanation: str = ""  # why predicted masks are not evaluated
    score_thresholds: dict[str, Any] = field(default_factory=dict)  # see `thresholds_to_store`
    # 95 % interval (low, high) of each metric of the field of this name: numbers, class_ap, mask_numbers, ...; {}: none
    intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    score_calibration: ScoreCalibration | None = None

    def with_score_calibration(self, calibration: ScoreCalibration) -> "CocoMeasures":
        """Return the measures with a calibration of the scores, which is also stored with a model."""
        stored = dict(self.score_thresholds)
        if stored:
            stored["score_calibration"] = calibration.to_store()
        return replace(self, score_thresholds=stored, score_calibration=calibration)

    def shown_interval(self, values: str, name: str) -> str:
        """Return the interval of a metric of a field such as `numbers` as text, empty without one."""
        ends = self.intervals.get(values, {}).get(name)
        return "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"

    def csv_line(self, epoch: int) -> str:
        """Return the line "csv format: EPOCH,AP,AP50,AP75,APs,APm,APl", in percent, as the reference prints it."""
        return ",".join([f"csv format: {epoch}", *(f"{100 * self.numbers[name]:.2f}" for name in MEASURE_NAMES[:6])])

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`: the 12 numbers of boxes at the top level, the rest under its name."""
        rest = {name: value for name, value in vars(self).items() if name not in ("numbers", "score_calibration")}
        if self.score_calibration:
            rest["score_calibration"] = self.score_calibration.to_json()
        return {
            **self.numbers,
            **{name: value for name, value in rest.items() if value or not name.startswith(("mask_", "intervals"))},
        }

    def table(self) -> str:
        """Return the numbers, the classes and the explanation as plain text of several lines."""
        lines = [f"{self.images} images, {self.detections} detections, {sum(self.class_objects.values())} objects"]
        for values in ("numbers", "mask_numbers"):
            numbers = getattr(self, values)
            lines += ["", "masks"] if values == "mask_numbers" and numbers else []
            lines += [
                f"{name:<9}{shown_measure(value):>7}{self._interval_column(values, name)}  {MEASURES[name]}"
                for name, value in numbers.items()
            ]
        lines += ["", *self._class_table()]
        if self.unknown_images:
            lines += [
                "",
                f"{self.unknown_images} of the {self.images} evaluated images are not in the ground truth: "
                "their detections count as false positives",
            ]
        if self.explanation:
            lines += ["", f"AP is {self.numbers['AP']:g}: {self.explanation}"]
        if self.mask_explanation:
            lines += ["", f"masks are not evaluated: {self.mask_explanation}"]
        return "\n".join(lines)

    def _class_table(self) -> list[str]:
        """Return a line for each class, with the AP of boxes and of masks."""
        columns = {"AP": "class_ap"} | ({"of masks": "mask_class_ap"} if self.mask_class_ap else {})
        width = max(map(len, ["class", *self.class_ap]))
        head = (f"{title:>9}{'95 % interval':>18}" if self.intervals else f"{title:>9}" for title in columns)
        return [f"{'class':<{width}}" + "".join(head) + "  objects"] + [
            f"{name:<{width}}"
            + "".join(
                f"  {shown_measure(getattr(self, values)[name]):>7}{self._interval_column(values, name)}"
                for values in columns.values()
            )
            + f"  {self.class_objects[name]:7d}"
            for name in self.class_ap
        ]

    def _interval_column(self, values: str, name: str) -> str:
        return f"  {self.shown_interval(values, name):16}" if self.intervals else ""


def shown_measure(value: float) -> str:
    """Return a measure with four digits, or `-` for COCO's -1: nothing to measure."""
    return "-" if value < 0 else f"{value:.4f}"


def interval_note(content: Mapping[str, Any], name: str) -> str:
    """Return " (95 % interval 0.42 to 0.61)" for a metric of boxes; empty without one.

    content: that of `CocoMeasures.to_json`.
    """
    ends = content.get("intervals", {}).get("numbers", {}).get(name)
    return f" (95 % interval {ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
