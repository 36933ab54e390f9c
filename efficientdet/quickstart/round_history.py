"""History of the rounds of a quick start: AP by labels, as a page and as JSON."""

import json
from pathlib import Path
from typing import Any

from efficientdet.quickstart.output_folder import METRICS, START
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.split_records import instances, records_of
from efficientdet.quickstart.state import State
from efficientdet.reports.html_page import chart_figure, document, heading, row, section, table
from object_detection.coco.score_thresholds import MIN_OBJECTS
from program_support.atomic_files import report_write_errors, write_text
from program_support.claimed_outputs import claim_folder
from program_support.errors import InputError

_JSON, _PAGE = "history.json", "history.html"
_LEAD = (
    "Each round trains on the images and labels of its time, from the model before it. Both are measured on the same "
    "images, which no training has seen, with the labels of the round; the interval is that of their difference. AP "
    "of different rounds is of different images if some were added."
)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return an entry for each finished round, in their order; none before the second.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / _JSON
    if not path.exists():
        return []
    try:
        rounds = json.loads(path.read_text(encoding="utf-8"))["rounds"]
        return [entry for entry in rounds if (entry["round"], entry["replaced"])]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: not the history of a quick start ({error}); restore or remove it") from error


def history_entry(folder: Path, state: State, verdict: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the entry of a round, whose records and metrics the folder has.

    Args:
        folder: folder of the round, or the output folder for the first one.
        state: state of the round.
        verdict: comparison with the model before; None for the first round.
    """
    train, metrics = instances(folder, "train"), json.loads((folder / METRICS).read_text(encoding="utf-8"))
    return {
        "round": state.number,
        "replaced": verdict is None or verdict["replaced"],
        "images": len(train["images"]),
        "labels": len(train["annotations"]),
        "classes": [category["name"] for category in train["categories"]],
        "measured_on": state.result("convert") or ("test" if records_of(folder, "test") else "val"),
        "measured_images": metrics["images"],
        "minutes": round(state.seconds() / 60, 1),
        "AP": metrics["AP"],
        "AP50": metrics["AP50"],
        "class_ap": metrics["class_ap"],
        "comparison": verdict,
    }


def write_history(folder: Path, entries: list[dict[str, Any]]) -> None:
    """Add entries of rounds to history.json, or replace those of the same rounds, and write the page.

    Raises:
        InputError: a file cannot be written.
    """
    added = {entry["round"] for entry in entries}
    rounds = [*(entry for entry in read_history(folder) if entry["round"] not in added), *entries]
    for name, text in ((_PAGE, _page(rounds)), (_JSON, json.dumps({"rounds": rounds}, indent=1) + "\n")):
        with report_write_errors(folder / name):
            write_text(folder / name, text)


def print_round(folder: Path, entry: dict[str, Any], *, former: int) -> None:
    """Print the result of a round that continued from the model of round `former`."""
    verdict, number = entry["comparison"], entry["round"]
    print(f"\nround {number}: {verdict['reason']}")
    if new := [name for name in entry["classes"] if name not in verdict["common_classes"]]:
        shown = ", ".join(f"{name} {_shown(entry['class_ap'].get(name)) or 'not measured'}" for name in new)
        print(f"AP of classes that the model before lacks: {shown}")
    if entry["replaced"]:
        print(f"the model of round {number} is in {folder}, that of round {former} in {folder}/rounds/{former}")
    else:
        print(
            f"the model of round {former} stays in {folder}, that of round {number} is in {folder}/rounds/{number}; to "
            "train again, add images or run the same command with more --minutes"
        )
    print(f"  {folder / verdict['page']}: comparison\n  {folder / _PAGE}: all rounds")


def _page(rounds: list[dict[str, Any]]) -> str:
    present = [entry for entry in rounds if entry["replaced"]][-1]
    title = f"Round {present['round']} of {len(rounds)} is the present model"
    by_labels = sorted((entry["labels"], entry["AP"]) for entry in rounds)
    columns = ("Round", "Images", "Labels", "Measured on", "Minutes", "AP", "Model", "Comparison with the model before")
    cells = [
        (
            entry["round"],
            entry["images"],
            entry["labels"],
            f"{entry['measured_images']} images of {entry['measured_on']}",
            f"{entry['minutes']:.1f}",
            _shown(entry["AP"]),
            "taken" if entry["replaced"] else "not taken",
            entry["comparison"]["reason"] if entry["comparison"] else "",
        )
        for entry in rounds
    ]
    chart = chart_figure("By labels", {"AP": by_labels}, x_label="Labeled boxes for training", y_label="AP")
    return document(
        title,
        [
            heading(title, figure=f"AP {present['AP']:.3f}", lead=_LEAD),
            section("AP", row([chart])),
            section("Rounds", table(columns, cells, label="Rounds")),
        ],
    )


def _shown(value: float | None) -> str:
    return "" if value is None or value < 0 else f"{value:.3f}"


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
