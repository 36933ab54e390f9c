"""Tables of compare_recipes.py: mean and standard error by recipe, differences to the baseline.

`recipe_tables.py --results=detections.json --records='DIR/test-*' --output=samples.json` writes AP and AP50 of
detections on resamples of their images, for the paired intervals. The resamples depend on the number of images alone,
so that they are the same for all cells of a data set.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.records.record_index import index_records
from efficientdet.configuration.flag_paths import class_names_for, records_of
from efficientdet.evaluation.data_set_evaluator import read_evaluator, read_results
from object_detection.coco.bootstrap import RESAMPLES, interval, multiplicities, resampled
from object_detection.coco.measures import MEASURE_NAMES
from program_support.atomic_files import write_text

MEASURES = ("AP", "AP50")
NONE = "-"
EXPLANATION = (
    "AP and AP50: mean over the seeds ± standard error (number of seeds) [95 % interval over the images, mean over the "
    "seeds, if all have one]. Mean: over the data sets. Difference: to the baseline, on the data sets of both. Its 95 "
    "% interval, if their detections are stored: for the same trainings on other test images, from resamples that are "
    "the same for all cells. SE by seeds: standard error of the difference on these data sets; the variance between "
    "seeds is pooled over the recipes, for each data set. SE by sets: standard error over the data sets, which also "
    "holds for others. Minutes and CPU seconds: mean of a training, its evaluations included."
)

Values = Mapping[str, Mapping[str, np.ndarray]]  # by recipe and data set: one value per seed


class Difference(NamedTuple):
    """Mean difference to the baseline over data sets, with its standard errors (NaN: too few cells)."""

    mean: float
    error_by_seeds: float
    error_by_sets: float


def values_by_recipe(cells: Sequence[Mapping[str, Any]], split: str, measure: str) -> Values:
    """Return a measure of finished cells."""
    values: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        if split in cell:
            values.setdefault(cell["recipe"], {}).setdefault(cell["data_set"], []).append(cell[split][measure])
    return {recipe: {name: np.array(by_seed) for name, by_seed in sets.items()} for recipe, sets in values.items()}


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of [n] values; NaN for fewer than two."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def difference(values: Values, recipe: str, baseline: str) -> Difference | None:
    """Compare a recipe with the baseline; None without a common data set."""
    sets = [name for name in values[recipe] if name in values.get(baseline, {})]
    if not sets:
        return None
    means, variances = [], []
    for name in sets:
        recipe_values, baseline_values = values[recipe][name], values[baseline][name]
        means.append(recipe_values.mean() - baseline_values.mean())
        variances.append(_variance_of_seeds(values, name) * (1 / len(recipe_values) + 1 / len(baseline_values)))
    by_seeds = math.sqrt(sum(variances)) / len(sets)
    return Difference(float(np.mean(means)), by_seeds, standard_error(np.array(means)))


def paired_interval(
    cells: Sequence[Mapping[str, Any]], measure: str, recipe: str, baseline: str
) -> tuple[float, float] | None:
    """Return the 95 % interval over the test images of `difference`; None if one of its cells has no samples."""
    changes, images = [], []
    for name in {cell["data_set"] for cell in cells}:
        here = [cell for cell in cells if cell["data_set"] == name and cell["recipe"] in (recipe, baseline)]
        if {cell["recipe"] for cell in here} != {recipe, baseline}:
            continue
        if not all("test_samples" in cell for cell in here):
            return None
        means = {
            one: np.mean([cell["test_samples"][measure] for cell in here if cell["recipe"] == one], axis=0)
            for one in (recipe, baseline)
        }
        changes.append(means[recipe] - means[baseline])
        images.append(here[0]["test_samples"]["images"])
    return interval(np.mean(changes, axis=0), images=min(images)) if changes else None


def _variance_of_seeds(values: Values, data_set: str) -> float:
    """Return the variance between seeds on a data set, pooled over the recipes; NaN if none has two seeds."""
    several = [sets[data_set] for sets in values.values() if data_set in sets and len(sets[data_set]) > 1]
    freedom = sum(len(of_seeds) - 1 for of_seeds in several)
    return (
        sum(float(((of_seeds - of_seeds.mean()) ** 2).sum()) for of_seeds in several) / freedom if freedom else math.nan
    )


def comparison(
    cells: Sequence[Mapping[str, Any]], split: str, measure: str, *, baseline: str
) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of one measure; a row per recipe, the baseline first."""
    values = values_by_recipe(cells, split, measure)
    sets = sorted({name for by_data_set in values.values() for name in by_data_set})
    measured = [cell for cell in cells if split in cell]
    has_samples = split == "test" and any("test_samples" in cell for cell in measured)
    rows = []
    for recipe in sorted(values, key=lambda name: (name != baseline, name)):
        of_recipe = [cell for cell in cells if cell["recipe"] == recipe]
        change = None if recipe == baseline else difference(values, recipe, baseline)
        ends = paired_interval(measured, measure, recipe, baseline) if change and has_samples else None
        shown_ends = [f"{ends[0]:+.4f} to {ends[1]:+.4f}" if ends else NONE] * has_samples
        rows.append(
            [
                recipe,
                *(_with_error(values[recipe].get(name), _intervals(of_recipe, name, split, measure)) for name in sets),
                _shown(float(np.mean([by_data_set.mean() for by_data_set in values[recipe].values()]))),
                NONE if change is None else _shown(change.mean, "+.4f"),
                *shown_ends,
                *([NONE] * 2 if change is None else map(_shown, change[1:])),
                f"{np.mean([cell['minutes'] for cell in of_recipe]):.1f}",
                f"{np.mean([cell['cpu_seconds'] for cell in of_recipe]):.0f}",
            ]
        )
    interval_column = ["95 % interval"] * has_samples
    return [
        measure,
        *sets,
        "mean",
        "difference",
        *interval_column,
        "SE by seeds",
        "SE by sets",
        "minutes",
        "CPU s",
    ], rows


def _intervals(cells: Sequence[Mapping[str, Any]], data_set: str, split: str, measure: str) -> list[Sequence[float]]:
    """Return the interval of a measure of each cell on a data set that has one."""
    measured = [cell[split] for cell in cells if cell["data_set"] == data_set and split in cell]
    by_measure = [one["intervals"]["numbers"] for one in measured if one.get("intervals")]
    return [ends[measure] for ends in by_measure if measure in ends]


def _with_error(values: np.ndarray | None, intervals: Sequence[Sequence[float]]) -> str:
    if values is None:
        return NONE
    error = f" ± {standard_error(values):.4f}" if len(values) > 1 else ""
    ends = " [{:.3f}, {:.3f}]".format(*np.mean(intervals, axis=0)) if len(intervals) == len(values) else ""
    return f"{values.mean():.4f}{error} ({len(values)}){ends}"


def _shown(value: float, form: str = ".4f") -> str:
    return NONE if math.isnan(value) else f"{value:{form}}"


def write_tables(folder: Path, cells: Sequence[Mapping[str, Any]], *, baseline: str) -> None:
    """Write val.md and test.md into a folder, as far as there are results."""
    commits = ", ".join(sorted({cell["commit"] for cell in cells}))
    for split in ("val", "test"):
        if any(split in cell for cell in cells):
            tables = [_markdown(*comparison(cells, split, measure, baseline=baseline)) for measure in MEASURES]
            write_text(folder / f"{split}.md", "\n\n".join([*tables, EXPLANATION, f"Commits: {commits}.\n"]))


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_samples(detections: str, records: str, path: str) -> None:
    """Write AP and AP50 of detections on resamples of their images."""
    index, class_names = index_records(files := records_of(records, "records")), class_names_for(files, json_file=None)
    evaluator = read_evaluator(index, class_names, json_file=None)
    comparison = evaluator.compare(read_results(detections, index, evaluator.ground_truth, class_names))
    images = len(comparison.image_ids)
    samples = resampled(comparison, multiplicities(images, RESAMPLES, seed=images)).numbers.round(6)
    values = {measure: samples[MEASURE_NAMES.index(measure)].tolist() for measure in MEASURES}
    write_text(path, json.dumps({"images": images, **values}))


if __name__ == "__main__":
    write_samples(*(word.partition("=")[2] for word in sys.argv[1:]))
