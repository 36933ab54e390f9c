"""Measure AP against the number of labeled images for each strategy of next_images.py.

`python benchmarks/learning_curves.py --data=DATA --data_sets=bccd,playing_cards,deeppcb --seeds=0,1,2` labels `--first`
random training images, trains EfficientDet-Lite0 from the detector of `pretrain_heads.py --held_out` for `--steps`
steps, measures AP on the test images, lets each strategy choose `--more` of the other training images, and so on up to
`--most`. Every training starts from that detector. The same command skips what is finished. It writes curves.md: AP by
number of images, and the area under the curve, the mean of these APs, with its difference to random of the same seeds;
means and standard errors over seeds.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import yaml
from compare_recipes import Cell, training_flags
from recipe_tables import standard_error

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = ("random", "uncertainty", "diversity", "expected_gain")
RECIPE = "short_pretrained_task_aligned"


class Curve:
    """One strategy on a data set with a seed."""

    def __init__(self, arguments: argparse.Namespace, data_set: str, seed: int, strategy: str):
        self.arguments, self.strategy = arguments, strategy
        self.data = Path(arguments.data) / data_set
        self.cell = Cell(data_set, RECIPE, seed)
        self.output = Path(arguments.output_dir) / data_set

    def folder(self, count: int) -> Path:
        """Return the folder of the training on `count` images; the first training is that of all strategies."""
        strategy = "first" if count == self.arguments.first else self.strategy
        return self.output / f"seed-{self.cell.seed}" / strategy / str(count)

    def measure(self) -> list[float]:
        """Return the test AP for each number of images."""
        content = json.loads((self.data / "annotations/instances_train.json").read_text(encoding="utf-8"))
        names = sorted(image["file_name"] for image in content["images"])
        labeled = random.Random(self.cell.seed).sample(names, self.arguments.first)
        found = []
        for count in counts(self.arguments):
            folder = self.folder(count)
            if not (folder / "test.json").exists():
                self._train(folder, content, labeled)
            found.append(json.loads((folder / "test.json").read_text(encoding="utf-8"))["AP"])
            if count < self.arguments.most:
                labeled = labeled + self._chosen(folder, content)
        return found

    def _train(self, folder: Path, content: dict, labeled: list[str]) -> None:
        """Train on the labeled images and evaluate on the test images."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "instances_train.json").write_text(json.dumps(part(content, labeled)), encoding="utf-8")
        images, test = self.data / "images", self.output / "records"
        for annotations, records in (
            (folder, folder / "records"),
            (self.data / "annotations/instances_test.json", test),
        ):
            if not (records / "train.report.json").exists() and not (records / "test.report.json").exists():
                run(
                    folder,
                    "dataset/create_tfrecord",
                    images=images,
                    annotations=annotations,
                    output_dir=records,
                    val_fraction=0,
                )
        table = yaml.safe_load((ROOT / "benchmarks/recipes.yaml").read_text(encoding="utf-8"))
        recipe = {**table["recipes"][RECIPE], "cost_of": {}}
        flags = training_flags(recipe, self.cell, table, steps=self.arguments.steps)
        flags |= {"training_file_pattern": folder / "records/train-*", "model_dir": folder / "model"}
        run(folder, "train", **flags)
        run(
            folder,
            "eval",
            ckpt=folder / "model",
            val_file_pattern=test / "test-*",
            output_json=folder / "test.json",
            bootstrap=0,
        )

    def _chosen(self, folder: Path, content: dict) -> list[str]:
        """Return the names of the images to label next."""
        output = folder / f"next-{self.strategy}"
        pool = self.output / "pool"
        if not pool.exists():
            pool.mkdir(parents=True)
            for image in content["images"]:
                os.link(self.data / "images" / image["file_name"], pool / image["file_name"])
        if not (output / "next_images.json").exists():
            run(
                folder,
                "next_images",
                model=folder / "model",
                labeled=folder / "records/train-*",
                images=pool,
                count=self.arguments.more,
                strategy=self.strategy,
                output_dir=output,
                format="coco",
            )
        return [entry["file_name"] for entry in json.loads((output / "next_images.json").read_text(encoding="utf-8"))]


def part(content: dict, images: Collection[str], classes: Collection[str] | None = None) -> dict:
    """Return COCO's content with some of its images, by file name, and some of its classes. None: all classes."""
    categories = [one for one in content["categories"] if classes is None or one["name"] in classes]
    listed = [image for image in content["images"] if image["file_name"] in images]
    ids, used = {image["id"] for image in listed}, {one["id"] for one in categories}
    kept = [one for one in content["annotations"] if one["image_id"] in ids and one["category_id"] in used]
    return {**content, "images": listed, "annotations": kept, "categories": categories}


def counts(arguments: argparse.Namespace) -> list[int]:
    """Return the numbers of labeled images."""
    return list(range(arguments.first, arguments.most + 1, arguments.more))


def run(folder: Path, program: str, **flags: object) -> None:
    """Run a program of this checkout, with its output appended to output.txt in the folder."""
    command = [sys.executable, str(ROOT / f"{program}.py"), *(f"--{name}={value}" for name, value in flags.items())]
    with (folder / "output.txt").open("ab") as output:
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=True)


def with_error(values: np.ndarray) -> str:
    """Return mean and standard error of a value for each seed."""
    return f"{values.mean():.3f}" + (f" ± {standard_error(values):.3f}" if len(values) > 1 else "")


def write_table(found: dict[tuple[str, int, str], list[float]], arguments: argparse.Namespace) -> None:
    """Write curves.md of the curves found so far, by data set, seed and strategy."""
    numbers = counts(arguments)
    lines = [
        f"| data set | strategy | {' | '.join(map(str, numbers))} | area | difference to random |",
        f"|---|---|{'---|' * (len(numbers) + 2)}",
    ]
    for data_set, strategy in dict.fromkeys((data_set, strategy) for data_set, _, strategy in found):
        seeds = [seed for name, seed, other in found if (name, other) == (data_set, strategy)]
        curves = np.array([found[data_set, seed, strategy] for seed in seeds])
        paired = [seed for seed in seeds if (data_set, seed, "random") in found]
        gains = np.array(
            [np.mean(found[data_set, s, strategy]) - np.mean(found[data_set, s, "random"]) for s in paired]
        )
        shown = [with_error(column) for column in (*curves.T, curves.mean(axis=1))]
        gain = with_error(gains) if strategy != "random" and len(gains) else ""
        lines.append(f"| {data_set} | {strategy} | {' | '.join(shown)} | {gain} |")
    (Path(arguments.output_dir) / "curves.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure the curves, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("EFFICIENTDET_DATA"), help="Folder of the data sets.")
    parser.add_argument("--data_sets", default="bccd,playing_cards,deeppcb")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--first", type=int, default=20, help="Labeled images at the beginning.")
    parser.add_argument("--more", type=int, default=20, help="Images that are labeled at a time.")
    parser.add_argument("--most", type=int, default=120, help="Labeled images at the end.")
    parser.add_argument("--steps", type=int, default=400, help="Training steps of 4 images.")
    parser.add_argument("--output_dir", default="runs/learning_curves")
    arguments = parser.parse_args()
    Path(arguments.output_dir).mkdir(parents=True, exist_ok=True)
    arguments.output_dir = str(Path(arguments.output_dir).resolve())
    found: dict[tuple[str, int, str], list[float]] = {}
    for seed, data_set, strategy in itertools.product(
        map(int, arguments.seeds.split(",")), arguments.data_sets.split(","), arguments.strategies.split(",")
    ):
        found[data_set, seed, strategy] = Curve(arguments, data_set, seed, strategy).measure()
        write_table(found, arguments)
        shown = " ".join(f"{value:.3f}" for value in found[data_set, seed, strategy])
        print(f"{data_set}, seed {seed}, {strategy}: {shown}", flush=True)


if __name__ == "__main__":
    main()
