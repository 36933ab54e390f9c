"""Verdict on the model of a round: does it replace the one before it, by the paired comparison on held-out images?

It is taken unless it is worse: unless AP, over the classes that both have, falls by more than 0.02, the 95 % interval
of the difference of AP lies below 0, or that of a class does (at a level that allows for the number of classes) which
has 10 objects or more: of a single object, all resamples that have it have the same difference.
"""

import json
from pathlib import Path
from typing import Any

from efficientdet.quickstart.output_folder import START
from efficientdet.quickstart.programs import run_program
from object_detection.coco.score_thresholds import MIN_OBJECTS
from program_support.claimed_outputs import claim_folder

_COMPARISON = "comparison"
_TOLERATED = 0.02  # fall of AP: few images cannot show a smaller one, and it would add up over the rounds
_ONE_TAIL = 0.025  # of the 95 % interval


def compare_with_start(output: Path, *, measured: str, relative_to: Path) -> dict[str, Any]:
    """Compare the model of a round with the one that it started from, and return the verdict.

    Args:
        output: folder of the round.
        measured: pattern of the held-out records.
        relative_to: folder from which the verdict names the page.
    """
    folder = claim_folder(output / _COMPARISON)
    run_program(
        "compare",
        {
            "models": [output / START, output / "model"],
            "val_file_pattern": measured,
            "output_dir": folder,
            "common_classes": True,
        },
    )
    content = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    before, _ = (model["measures"] for model in content["models"])
    [pair] = content["differences"]
    differences = {name: metrics["AP"] for name, metrics in pair["classes"].items() if "AP" in metrics}
    difference = pair["numbers"].get("AP")
    replaced, reason = verdict(difference, differences, objects=before["class_objects"])
    return {
        "replaced": replaced,
        "reason": reason,
        "before": before["AP"],
        "difference": difference,
        "class_differences": differences,
        "common_classes": [*pair["classes"]],
        "page": str((folder / "compare.html").relative_to(relative_to)),
    }


def verdict(
    difference: dict[str, float] | None, classes: dict[str, dict[str, float]], *, objects: dict[str, int]
) -> tuple[bool, str]:
    """Return whether the second model is taken, and the reason.

    Args:
        difference: of AP, second minus first: value, low and high (95 %), and probability that the second is better.
        classes: the same of each class. A class is worse if its interval lies below 0 and the probability is that of
            the interval divided by the number of classes (Bonferroni), since one of many is easily below by chance.
        objects: number of objects of each class, of which 10 or more can show that it is worse.
    """
    if difference is None:
        return False, "AP cannot be measured"
    shown = f"AP changed by {difference['value']:+.3f} (95 % interval {difference['low']:+.3f} to "
    shown += f"{difference['high']:+.3f})"
    if difference["high"] < 0:
        return False, f"{shown}: worse"
    if difference["value"] < -_TOLERATED:
        return False, f"{shown}: more than {_TOLERATED:g} lower"
    for name, one in sorted(classes.items(), key=lambda item: item[1]["value"]):
        if objects[name] >= MIN_OBJECTS and one["high"] < 0 and one["probability"] < _ONE_TAIL / len(classes):
            return False, (
                f"{shown}, but that of {name} by {one['value']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}): worse"
            )
    return True, f"{shown}: {'better' if difference['low'] > 0 else 'not worse'}"
