"""The scores from which on detections are shown: the best ones on the validation data, stored with the model, or a default."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from efficientdet.checkpoints.description import Description

DEFAULT_THRESHOLD = 0.4  # of a model that stores none


@dataclass(frozen=True, kw_only=True)
class ScoreThresholds:
    """The lowest scores that are shown.

    Attributes:
        overall: of the classes that have no threshold of their own.
        by_category: of the others, by category id.
        source: where the values come from, for messages.
    """

    overall: float = DEFAULT_THRESHOLD
    by_category: Mapping[int, float] = field(default_factory=dict)
    source: str = "the default, as the model stores none"

    @classmethod
    def stored_in(cls, description: Description) -> "ScoreThresholds":
        """Return those of the best F1 that the model stores, else the default for all classes."""
        if not (stored := description.score_thresholds):
            return cls()
        classes = stored["classes"]
        return cls(overall=stored["overall"], source="the best F1 on the validation data, stored with the model",
                   by_category={entry["id"]: classes[entry["name"]] for entry in description.categories
                                if entry["name"] in classes})

    def of(self, category_ids: np.ndarray) -> np.ndarray:
        """Return the threshold of each detection, [N] float64."""
        return np.array([self.by_category.get(category_id, self.overall) for category_id in category_ids.tolist()], float)

    def __str__(self) -> str:
        values = self.by_category.values()
        by_class = f" ({min(values):g} to {max(values):g} by class)" if values else ""
        return f"{self.overall:g}{by_class}, {self.source}"
