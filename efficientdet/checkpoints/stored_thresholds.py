"""Score thresholds of shown detections: those that an evaluation has stored with the model, or a default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from efficientdet.checkpoints.description import Description
from object_detection.coco.score_calibration import ScoreMap, calibrated_scores
from program_support.errors import InputError

DEFAULT_THRESHOLD = 0.4  # used if none is stored with the model
_MOST_NAMES = 5  # class names in a message


@dataclass(frozen=True, kw_only=True)
class ScoreThresholds:
    """Lowest scores of shown detections.

    Attributes:
        overall: threshold of the classes that have no own threshold.
        by_category: thresholds by category id.
        source: origin of the values, for messages.
        kinds: the thresholds that are stored with the model, by THRESHOLD_KINDS.
    """

    overall: float = DEFAULT_THRESHOLD
    by_category: Mapping[int, float] = field(default_factory=dict)
    source: str = "the default, as the model stores none"
    kinds: "Mapping[str, ScoreThresholds]" = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def stored_in(cls, description: Description) -> "ScoreThresholds":
        """Return the thresholds stored in the model, else the default for all classes."""
        if not (stored := description.score_thresholds):
            return cls()

        def of_kind(thresholds: Mapping[str, Any], source: str) -> ScoreThresholds:
            classes, categories = thresholds["classes"], description.categories
            by_category = {entry["id"]: classes[entry["name"]] for entry in categories if entry["name"] in classes}
            return cls(overall=thresholds["overall"], source=source, by_category=by_category)

        kinds = {"f1": of_kind(stored.get("f1") or stored, "the best F1 on the validation data, stored with the model")}
        if guaranteed := stored.get("miss_rate"):
            kinds["miss_rate"] = of_kind(guaranteed, f"{_meaning(guaranteed)}, stored with the model")
        return replace(kinds["miss_rate" if "f1" in stored else "f1"], kinds=kinds)

    def chosen(self, kind: str | None) -> "ScoreThresholds":
        """Return the stored thresholds of one of THRESHOLD_KINDS; None: these.

        Raises:
            InputError: the model stores none of this kind.
        """
        if kind is None:
            return self
        if kind not in self.kinds:
            how = "--store_thresholds" if kind == "f1" else "--miss_rate=0.05 --store_thresholds"
            raise InputError(f"--threshold={kind}: the model stores no such thresholds; eval.py {how} stores them")
        return replace(self.kinds[kind], kinds=self.kinds)

    def calibrated(self, maps: Mapping[int, ScoreMap], category_ids: Sequence[int]) -> "ScoreThresholds":
        """Return the thresholds of calibrated scores, which the same detections reach.

        `overall`, for readers that have one threshold for all classes, is the lowest that it is mapped to.
        """
        ids = np.array(category_ids, np.int64)
        by_category = calibrated_scores(self.of(ids), ids, maps).tolist()
        return ScoreThresholds(
            overall=float(calibrated_scores(np.full(len(ids), self.overall), ids, maps).min()),
            by_category=dict(zip(ids.tolist(), by_category, strict=True)),
            source=f"{self.source}, of calibrated scores",
            kinds={kind: one.calibrated(maps, category_ids) for kind, one in self.kinds.items()},
        )

    def of(self, category_ids: np.ndarray) -> np.ndarray:
        """Return the threshold of each detection, [N] float64."""
        return np.array(
            [self.by_category.get(category_id, self.overall) for category_id in category_ids.tolist()], float
        )

    def __str__(self) -> str:
        values = self.by_category.values()
        by_class = f" ({min(values):.4g} to {max(values):.4g} by class)" if values else ""
        return f"{self.overall:.4g}{by_class}, {self.source}"


def with_default_thresholds(description: Description, kind: str | None) -> Description:
    """Return the description of an exported file whose thresholds, for any reader, are those of one of THRESHOLD_KINDS.

    Raises:
        InputError: the checkpoint stores none of this kind.
    """
    if kind != "miss_rate":
        return description
    ScoreThresholds.stored_in(description).chosen(kind)
    stored = dict(description.score_thresholds)
    used = {name: stored["miss_rate"][name] for name in ("overall", "classes")}
    f1 = {name: stored[name] for name in ("overall", "classes")}
    return replace(description, score_thresholds={**stored, **used, "f1": f1})


def _meaning(guaranteed: Mapping[str, Any]) -> str:
    names = guaranteed["not_guaranteed"]
    listed = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    return guaranteed["meaning"] + (f" (not for {listed})" if names else "")
