"""The bench of training recipes, with short programs in the place of train.py, eval.py and the conversion."""

import json
import math
import statistics
import sys
from pathlib import Path

import pytest
import yaml

from efficientdet.configuration.model_config import parse_overrides
from efficientdet.families.hyperparameters import with_overrides
from efficientdet.families.registry import hyperparameters_of
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import compare_recipes as recipes  # noqa: E402
from compare_recipes import Cell, Paths, measure, training_flags  # noqa: E402
from recipe_tables import difference, values_by_recipe  # noqa: E402

TABLE = {
    "data_sets": {
        "cells": {"steps": 400, "hparams": {"image_size": "64x96", "anchor_scale": 2.0}},
        "boards": {"steps": 40, "masks": True, "hparams": {"image_size": 64}},
    },
    "recipes": {
        "baseline": {"flags": {"batch_size": 4, "lr": 0.1}, "hparams": {"jitter_min": 0.8}},
        "dear": {
            "cost": 2,
            "flags": {"lr": None, "verify_records": "never"},
            "hparams": {"jitter_min": 0.5},
            "hparams_of": {"cells": {"anchor_scale": 3.0}},
        },
        "all": {"kind": "quickstart", "flags": {"minutes": 3}},
        "twice": {"first": {"cost": 2, "hparams": {"jitter_min": 0.5}}, "cost": 8, "cost_of": {"cells": 4}},
    },
}
PROGRAM = """
import json, pathlib, sys
flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([pathlib.Path(sys.argv[0]).stem, flags]) + "\\n")
"""
TRAINS = """
model = pathlib.Path(flags.get("model_dir") or flags["output_dir"] + "/model")
model.mkdir(parents=True, exist_ok=True)
seed = int(flags.get("seed", 0))
if seed == 7 and not (model / "saved").exists():
    (model / "saved").touch()
    sys.exit("interrupted")
for epoch, ap in ((5, 0.1), (20, 0.3 + 0.01 * seed)):
    (model / f"metrics-{epoch}.json").write_text(json.dumps({"AP": ap, "AP50": 2 * ap}))
"""
EVALUATES = """
pathlib.Path(flags["output_json"]).write_text(json.dumps({"AP": 0.25, "AP50": 0.5}))
"""
CONVERTS = """
(pathlib.Path(flags["output_dir"]) / "train-0").touch()
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Return (measure these cells of TABLE, the calls of programs so far) with short programs."""
    root, calls = tmp_path / "checkout", tmp_path / "calls.txt"
    (root / "dataset").mkdir(parents=True)
    for name, content in (
        ("train", TRAINS),
        ("quickstart", TRAINS),
        ("eval", EVALUATES),
        ("dataset/create_tfrecord", CONVERTS),
    ):
        (root / f"{name}.py").write_text(PROGRAM.format(calls=str(calls)) + content)
    monkeypatch.setattr(recipes, "ROOT", root)
    paths = Paths(tmp_path / "data", tmp_path / "output")

    def run(*cells, splits=("val",), table=TABLE):
        return measure([*cells], table, paths, splits=splits)

    return run, lambda: [json.loads(line) for line in calls.read_text().splitlines()]


def test_flags_of_a_cell():
    """Half the steps at cost 2, in 20 epochs; the recipe's values come last, and null removes a flag."""
    assert training_flags(TABLE["recipes"]["dear"], Cell("cells", "dear", 3), TABLE, steps=400) == {
        "batch_size": 4,
        "verify_records": "never",
        "num_epochs": 20,
        "num_examples_per_epoch": 40,
        "checkpoint_period": 5,
        "warmup_epochs": 5.0,
        "seed": 3,
        "warn_of_lr": False,
        "hparams": "jitter_min=0.5,image_size=64x96,anchor_scale=3.0",
    }


def test_finished_cells_are_skipped_and_an_interrupted_one_is_run_again(bench, tmp_path):
    run, calls = bench
    cells = [Cell("cells", "baseline", 1), Cell("cells", "dear", 7), Cell("boards", "baseline", 1)]
    assert run(*cells) == ["cells-dear-7"]
    assert [program for program, _ in calls()] == ["create_tfrecord", "train", "train", "create_tfrecord", "train"]
    assert [flags["include_masks"] for program, flags in calls() if program != "train"] == ["False", "True"]
    assert "interrupted" in (tmp_path / "output/cells/cells-dear-7/output.txt").read_text()
    assert "dear" not in (tmp_path / "output/val.md").read_text()
    minutes = json.loads((tmp_path / "output/cells/cells-dear-7/cell.json").read_text())["cpu_seconds"]
    assert run(*cells) == []
    assert [flags["model_dir"] for _, flags in calls()[5:]] == [str(tmp_path / "output/cells/cells-dear-7/model")]
    outcome = json.loads((tmp_path / "output/cells/cells-dear-7/cell.json").read_text())
    assert outcome["val"]["AP"] == 0.37
    assert outcome["cpu_seconds"] > minutes > 0
    assert run(*cells, splits=("val", "test")) == []
    assert [program for program, _ in calls()[6:]] == ["eval"] * 3
    assert "0.2500" in (tmp_path / "output/test.md").read_text()
    changed = {**TABLE, "data_sets": {**TABLE["data_sets"], "cells": {**TABLE["data_sets"]["cells"], "steps": 440}}}
    with pytest.raises(InputError, match="other settings"):
        run(cells[0], table=changed)


def test_a_recipe_with_a_training_before_it(bench, tmp_path):
    run, calls = bench
    assert run(Cell("cells", "twice", 2)) == []
    (_, first), (_, last) = calls()[1:]
    assert first["model_dir"] == last["pretrained_ckpt"] == str(tmp_path / "output/cells/cells-twice-2/first")
    assert (first["num_examples_per_epoch"], first["hparams"].split(",")[0]) == ("40", "jitter_min=0.5")
    assert (last["num_examples_per_epoch"], last["hparams"].split(",")[0]) == ("20", "jitter_min=0.8")
    assert first["seed"] == last["seed"] == "2"
    dearer = {**TABLE["recipes"]["twice"], "first": {"cost": 4}}
    with pytest.raises(InputError, match="other settings"):
        run(Cell("cells", "twice", 2), table={**TABLE, "recipes": {**TABLE["recipes"], "twice": dearer}})


AP = {  # by recipe and data set, one value per seed
    "baseline": {"a": [0.50, 0.52, 0.51], "b": [0.30, 0.28, 0.35]},
    "better": {"a": [0.55, 0.57, 0.53], "b": [0.36, 0.31, 0.33]},
    "screened": {"a": [0.54], "b": [0.30]},
    "elsewhere": {"c": [0.9]},
}
CELLS = [
    {
        "recipe": recipe,
        "data_set": name,
        "seed": seed,
        "commit": "abc",
        "minutes": 10.0 + seed,
        "cpu_seconds": 1000.0,
        "val": {"AP": ap, "AP50": ap + 0.1},
    }
    for recipe, sets in AP.items()
    for name, values in sets.items()
    for seed, ap in enumerate(values)
]


@pytest.mark.parametrize("recipe", ["better", "screened"])
def test_differences_and_their_standard_errors(recipe):
    """Computed in another way: a difference of means has the sum of their variances, of which each set has half."""
    found = difference(values_by_recipe(CELLS, "val", "AP"), recipe, "baseline")
    changes = [statistics.mean(AP[recipe][name]) - statistics.mean(AP["baseline"][name]) for name in "ab"]
    assert found.mean == pytest.approx(statistics.mean(changes))
    assert found.error_by_sets == pytest.approx(statistics.stdev(changes) / math.sqrt(2))
    # With equal numbers of seeds the pooled variance is the mean of the two recipes' variances.
    pooled = [
        statistics.mean(statistics.variance(AP[other][name]) for other in ("baseline", "better")) for name in "ab"
    ]
    seeds = len(AP[recipe]["a"])
    assert found.error_by_seeds == pytest.approx(math.sqrt(sum(p / 3 + p / seeds for p in pooled) / 4))


def test_every_recipe_of_the_table_has_valid_hyperparameters():
    table = yaml.safe_load((ROOT / "benchmarks" / "recipes.yaml").read_text())
    for name, recipe in table["recipes"].items():
        trainings = [] if recipe.get("kind") == "quickstart" else [recipe, recipe.get("first", {})]
        for training in trainings:
            for data_set in table["data_sets"]:
                flags = training_flags(training, Cell(data_set, name, 0), table, steps=1000)
                hparams = hyperparameters_of(flags["model_name"], {})
                with_overrides(hparams, parse_overrides(flags["hparams"]))
