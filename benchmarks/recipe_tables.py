"""Tables of compare_recipes.py: mean and standard error by recipe, differences to the baseline."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from program_support.atomic_files import write_text

MEASURES = ("AP", "AP50")
NONE = "-"
EXPLANATION = (
    "AP and AP50: mean over the seeds ± standard error (number of seeds). Mean: over the data sets. Difference: to the "
    "baseline, on the data sets of both; compare.py has its 95 % interval over the images. SE by seeds: standard error "
    "of the difference on these data sets; the variance between seeds is pooled over the recipes, for each data set. "
    "SE by sets: standard error over the data sets, which also holds for others. Minutes and CPU seconds: mean of a "
    "training, its evaluations included."
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
    rows = []
    for recipe in sorted(values, key=lambda name: (name != baseline, name)):
        of_recipe = [cell for cell in cells if cell["recipe"] == recipe]
        change = None if recipe == baseline else difference(values, recipe, baseline)
        rows.append(
            [
                recipe,
                *(_with_error(values[recipe].get(name)) for name in sets),
                _shown(float(np.mean([by_data_set.mean() for by_data_set in values[recipe].values()]))),
                NONE if change is None else _shown(change.mean, "+.4f"),
                *([NONE] * 2 if change is None else map(_shown, change[1:])),
                f"{np.mean([cell['minutes'] for cell in of_recipe]):.1f}",
                f"{np.mean([cell['cpu_seconds'] for cell in of_recipe]):.0f}",
            ]
        )
    return [measure, *sets, "mean", "difference", "SE by seeds", "SE by sets", "minutes", "CPU s"], rows


def _with_error(values: np.ndarray | None) -> str:
    if values is None:
        return NONE
    error = f" ± {standard_error(values):.4f}" if len(values) > 1 else ""
    return f"{values.mean():.4f}{error} ({len(values)})"


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
