"""Score thresholds of shown detections: those with the best F1 on the validation data, or a default."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from efficientdet.checkpoints.description import Description

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
        classes = stored["classes"]
        return cls(
            overall=stored["overall"],
            source="the best F1 on the validation data, stored with the model",
            by_category={
                entry["id"]: classes[entry["name"]] for entry in description.categories if entry["name"] in classes
            },
        )

    def of(self, category_ids: np.ndarray) -> np.ndarray:
        """Return the threshold of each detection, [N] float64."""
        return np.array(
            [self.by_category.get(category_id, self.overall) for category_id in category_ids.tolist()], float
        )

    def __str__(self) -> str:
        values = self.by_category.values()
        by_class = f" ({min(values):g} to {max(values):g} by class)" if values else ""
        return f"{self.overall:g}{by_class}, {self.source}"
