"""Score thresholds of shown detections: those that an evaluation has stored with the model, or a default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from efficientdet.checkpoints.description import Description
from object_detection.coco.score_calibration import ScoreMap, calibrated_scores

DEFAULT_THRESHOLD = 0.4  # used if none is stored with the model


@dataclass(frozen=True, kw_only=True)
class ScoreThresholds:
    """Lowest scores of shown detections.

    Attributes:
        overall: threshold of the classes that have no own threshold.
        by_category: thresholds by category id.
        source: origin of the values, for messages.
    """

    overall: float = DEFAULT_THRESHOLD
    by_category: Mapping[int, float] = field(default_factory=dict)
    source: str = "the default, as the model stores none"

    @classmethod
    def stored_in(cls, description: Description) -> "ScoreThresholds":
        """Return the thresholds stored in the model, else the default for all classes."""
        if not (stored := description.score_thresholds):
            return cls()
        classes, categories = stored["classes"], description.categories
        # Files of earlier versions may have thresholds of another kind, beside which they store those of the best F1
        origin = "the thresholds" if "f1" in stored else "the best F1 on the validation data,"
        return cls(
            overall=stored["overall"],
            by_category={entry["id"]: classes[entry["name"]] for entry in categories if entry["name"] in classes},
            source=f"{origin} stored with the model",
        )

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
