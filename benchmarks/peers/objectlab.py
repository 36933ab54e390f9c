"""Print ObjectLab's scores of boxes: `python objectlab.py CASE.json`, after `pip install cleanlab`.

CASE.json: `labels` and `predictions` as cleanlab expects them, and the score thresholds `high` and `low`. Printed as
JSON are, for each image, the scores of predictions for an overlooked label, and those of labels for place and class.
"""

import json
import sys

import numpy as np
from cleanlab.object_detection.rank import (
    compute_badloc_box_scores,
    compute_overlooked_box_scores,
    compute_swap_box_scores,
)

with open(sys.argv[1], encoding="utf-8") as file:
    case = json.load(file)
labels = [
    {"bboxes": np.array(one["bboxes"], float).reshape(-1, 4), "labels": np.array(one["labels"], int)}
    for one in case["labels"]
]
predictions = []
for image in case["predictions"]:
    by_class = np.empty(len(image), object)
    by_class[:] = [np.array(rows, float).reshape(-1, 5) for rows in image]
    predictions.append(by_class)
same = {"labels": labels, "predictions": predictions}
scores = {
    "overlooked": compute_overlooked_box_scores(**same, high_probability_threshold=case["high"]),
    "badloc": compute_badloc_box_scores(**same, low_probability_threshold=case["low"]),
    "swap": compute_swap_box_scores(**same, high_probability_threshold=case["high"]),
}
print(
    json.dumps({name: [np.nan_to_num(image, nan=2.0).tolist() for image in of_all] for name, of_all in scores.items()})
)
