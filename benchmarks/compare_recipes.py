"""Compare training recipes on several data sets: `compare_recipes.py --recipes=A,B --data_sets=C --seeds=0,1`.

Data sets and recipes are in recipes.yaml beside this file, or in another --table. A cell is one training of a recipe on
a data set with a seed. It has a fixed number of steps and is evaluated on the validation images; with --test also on
the test images. After each cell the tables val.md and test.md of all cells in the output folder are written. The same
command skips finished cells and resumes an interrupted one.
"""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from absl import flags
from recipe_tables import write_tables
from throughput_matrix import commit_here

from efficientdet.configuration.flag_paths import writable_folder
from efficientdet.data_checks.findings import as_hparams
from program_support.atomic_files import unfinished_folder, write_text
from program_support.command_line import run, whole_numbers
from program_support.errors import InputError

FLAGS = flags.FLAGS
ROOT = Path(__file__).resolve().parents[1]
BASELINE = "baseline"
SPLITS = ("val", "test")
EPOCHS, EVALUATIONS = 20, 4  # of a cell; an epoch need not cover the data set
WARMUP_STEPS = 50  # as quickstart.py; at least an epoch


class Cell(NamedTuple):
    """One training."""

    data_set: str
    recipe: str
    seed: int

    @property
    def name(self) -> str:
        """Return the name of the cell's folder."""
        return f"{self.data_set}-{self.recipe}-{self.seed}"


class Paths(NamedTuple):
    """Folders of a measurement."""

    data: Path
    output: Path


def define_flags() -> None:
    """Define the flags."""
    flags.DEFINE_list("recipes", None, "Recipes to measure, comma-separated. Default: all of the table.")
    flags.DEFINE_list("data_sets", None, "Data sets to measure on, comma-separated. Default: all of the table.")
    flags.DEFINE_list("seeds", ["0"], "Random seeds, comma-separated.")
    flags.DEFINE_integer("steps", None, "Steps of a recipe of cost 1. Default: those of the data set in the table.")
    flags.DEFINE_bool("test", False, "Also evaluate on the test images.")
    flags.DEFINE_string("table", str(Path(__file__).with_name("recipes.yaml")), "YAML file of data sets and recipes.")
    flags.DEFINE_string("data", None, "Folder of the data sets. Default: $EFFICIENTDET_DATA.")
    flags.DEFINE_string("output_dir", "runs/recipes", "Output folder.")


def main() -> None:
    """Measure the cells that are not finished."""
    table = yaml.safe_load(Path(FLAGS.table).read_text(encoding="utf-8"))
    data = FLAGS.data or os.environ.get("EFFICIENTDET_DATA")
    if not data:
        raise InputError("--data: expected the folder of the data sets; $EFFICIENTDET_DATA is not set")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    cells = [
        Cell(data_set, recipe, seed)
        for seed in whole_numbers(FLAGS.seeds, "seeds")
        for recipe in _chosen("recipes", table)
        for data_set in _chosen("data_sets", table)
    ]
    failed = measure(
        cells,
        table,
        Paths(Path(data).resolve(), Path(writable_folder(FLAGS.output_dir, "output_dir")).resolve()),
        splits=SPLITS if FLAGS.test else SPLITS[:1],
        steps=FLAGS.steps,
    )
    if failed:
        raise InputError(f"failed: {', '.join(failed)}; see output.txt in their folders")


def _chosen(part: str, table: Mapping[str, Any]) -> list[str]:
    names = FLAGS[part].value or list(table[part])
    if unknown := {*names} - {*table[part]}:
        raise InputError(f"--{part}={','.join(names)}: {FLAGS.table} has no {', '.join(sorted(unknown))}")
    return names


def measure(
    cells: list[Cell],
    table: Mapping[str, Any],
    paths: Paths,
    *,
    splits: tuple[str, ...],
    steps: int | None = None,
) -> list[str]:
    """Measure the unfinished cells and write the tables after each; return the names of those that failed.

    Args:
        cells: Cells in the order of measurement.
        table: Data sets and recipes, as in recipes.yaml.
        paths: Folders.
        splits: Evaluated splits.
        steps: Steps of a recipe of cost 1, instead of the table's.
    """
    failed = []
    for cell in cells:
        done = measured(cell, table, paths, splits=splits, steps=steps)
        write_tables(paths.output, finished_cells(paths.output), baseline=BASELINE)
        if done:
            figures = ", ".join(
                f"{split} AP {done[split]['AP']:.3f} AP50 {done[split]['AP50']:.3f}" for split in splits
            )
            print(f"{cell.name}: {figures}, {done['minutes']:.1f} minutes, {done['cpu_seconds']:.0f} CPU s", flush=True)
        else:
            print(f"{cell.name}: failed; see {_folder(cell, paths)}/output.txt", flush=True)
            failed.append(cell.name)
    print(f"wrote the tables in {paths.output}")
    return failed


def finished_cells(folder: Path) -> list[dict[str, Any]]:
    """Return the outcomes of all finished cells in an output folder."""
    outcomes = []
    for path in sorted(folder.glob("cells/*/cell.json")):
        outcome = json.loads(path.read_text(encoding="utf-8"))
        outcomes += [outcome] * ("val" in outcome)
    return outcomes


def _folder(cell: Cell, paths: Paths) -> Path:
    return paths.output / "cells" / cell.name


def measured(
    cell: Cell, table: Mapping[str, Any], paths: Paths, *, splits: tuple[str, ...], steps: int | None
) -> dict[str, Any] | None:
    """Return the outcome of a cell, after the programs that it lacks; None if one of them failed; see `measure`."""
    recipe, folder = table["recipes"][cell.recipe], _folder(cell, paths)
    data_set = table["data_sets"][cell.data_set]
    is_quickstart = recipe.get("kind") == "quickstart"
    steps = steps or data_set["steps"]
    settings = (
        {"formats": "onnx", "weights": "none", **recipe["flags"]}  # the program has no seed
        if is_quickstart
        else training_flags(recipe, cell, table, steps=steps)
    )
    first = training_flags(recipe["first"], cell, table, steps=steps) if "first" in recipe else {}
    compared = {**settings, "first": first} if first else settings
    path, model = folder / "cell.json", folder / ("quickstart/model" if is_quickstart else "model")
    outcome = {**cell._asdict(), "settings": compared, "commit": commit_here(), "minutes": 0.0, "cpu_seconds": 0.0}
    if path.exists():
        outcome = json.loads(path.read_text(encoding="utf-8"))
        if outcome["settings"] != compared:
            raise InputError(f"{path}: measured with other settings; delete the folder or use another --output_dir")
    records = _records(paths, cell.data_set, masks=data_set.get("masks", False))
    if "val" not in outcome:
        with _accounted(outcome, path):
            places = (
                {**_sources(paths, cell.data_set), "output_dir": folder / "quickstart"}
                if is_quickstart
                else {
                    "training_file_pattern": records / "train-*",
                    "val_file_pattern": records / "val-*",
                    "model_dir": model,
                }
            )
            if first:
                if _failed("train", {**places, **first, "model_dir": folder / "first"}, folder):
                    return None
                places["pretrained_ckpt"] = folder / "first"
            if _failed("quickstart" if is_quickstart else "train", {**places, **settings}, folder):
                return None
            outcome["val"] = _last_metrics(model)
    if "test" in splits and "test" not in outcome:
        test = {"ckpt": model, "val_file_pattern": records / "test-*", "output_json": folder / "test.json"}
        if _failed("eval", test, folder):
            return None
        outcome["test"] = json.loads((folder / "test.json").read_text(encoding="utf-8"))
        write_text(path, json.dumps(outcome, indent=1))
    return outcome


def training_flags(recipe: Mapping[str, Any], cell: Cell, table: Mapping[str, Any], *, steps: int) -> dict[str, Any]:
    """Return the flags of train.py for a training of a cell, without paths; steps: of a recipe of cost 1."""
    baseline = table["recipes"][BASELINE]
    flags_of_recipe = {**baseline["flags"], **recipe.get("flags", {})}
    hparams = {
        **baseline["hparams"],
        **table["data_sets"][cell.data_set]["hparams"],
        **recipe.get("hparams", {}),
        **recipe.get("hparams_of", {}).get(cell.data_set, {}),
    }
    cost = recipe.get("cost_of", {}).get(cell.data_set, recipe.get("cost", 1))
    steps_per_epoch = max(1, round(steps / cost / EPOCHS))
    settings = {
        "num_epochs": EPOCHS,
        "num_examples_per_epoch": steps_per_epoch * flags_of_recipe["batch_size"],
        "checkpoint_period": EPOCHS // EVALUATIONS,
        "warmup_epochs": max(1.0, round(WARMUP_STEPS / steps_per_epoch, 2)),
        "seed": cell.seed,
        "warn_of_lr": False,
        "hparams": as_hparams(hparams),
        **flags_of_recipe,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _sources(paths: Paths, data_set: str) -> dict[str, Path]:
    return {"images": paths.data / data_set / "images", "annotations": paths.data / data_set / "annotations"}


def _records(paths: Paths, data_set: str, *, masks: bool) -> Path:
    """Return the folder of the records of a data set, which is converted once."""
    records = paths.output / "records" / data_set
    if not records.is_dir():
        with unfinished_folder(records) as unfinished:
            settings = {**_sources(paths, data_set), "output_dir": unfinished, "include_masks": masks}
            if _failed("dataset/create_tfrecord", settings, paths.output):
                raise InputError(f"{data_set}: the conversion failed; see {paths.output}/output.txt")
            unfinished.rename(records)
    return records


@contextlib.contextmanager
def _accounted(outcome: dict[str, Any], path: Path) -> Iterator[None]:
    """Add the wall-clock and CPU time of the block's programs to an outcome and write it, also if it is interrupted."""
    begun, spent_before = time.monotonic(), _cpu_seconds()
    try:
        yield
    finally:
        outcome["minutes"] += round((time.monotonic() - begun) / 60, 2)
        outcome["cpu_seconds"] += round(_cpu_seconds() - spent_before, 3)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(outcome, indent=1))


def _cpu_seconds() -> float:
    """Return the CPU seconds of all ended subprocesses."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_metrics(model: Path) -> dict[str, Any]:
    """Return the validation metrics of the last evaluation of a training."""
    evaluated = {
        int(match[1]): path for path in model.glob("metrics-*.json") if (match := re.search(r"-(\d+)\.json", path.name))
    }
    return json.loads(evaluated[max(evaluated)].read_text(encoding="utf-8"))


def _failed(program: str, settings: Mapping[str, Any], folder: Path) -> bool:
    """Run a program of this checkout, with its output appended to a file in the folder; return whether it failed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, f"{program}.py", *(f"--{name}={value}" for name, value in settings.items())]
    with (folder / "output.txt").open("ab") as output:
        # In a separate session: Ctrl-C reaches only this program, which then stops the other one.
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
        try:
            return process.wait() != 0
        finally:
            if process.poll() is None:
                process.terminate()  # it saves its state
                process.wait()


if __name__ == "__main__":
    define_flags()
    run(main)
