"""Add a class to a detector with images that are labeled for it alone, and measure what is forgotten and what learned.

`python benchmarks/new_class.py --data=DATA --seeds=0,1,2` trains EfficientDet-Lite0 from the detector of
`pretrain_heads.py --held_out` on one half of the training images, labeled for the old classes. From this model it
trains in five ways, and measures AP of the old and of the new classes on the test images:

- `plain`: on the other half, labeled for the new classes alone
- `ignored`: on both halves, each labeled for its classes (create_tfrecord.py --labeled_classes, ignore_in_crowds)
- `longer`: the same with twice the steps, which show the new images as often as `plain`
- `pseudo`: as `ignored`, and the old classes of the other half labeled by the detections of the model (--pseudo_labels)
- `joint`: on both halves, labeled for all classes

The same command skips what is finished. It writes new_class.md: means and standard errors over seeds.
"""

import argparse
import json
import os
import random
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from compare_recipes import Cell, training_flags
from learning_curves import ROOT, part, run, with_error

NEW_CLASSES = {"bccd": ("Platelets",), "playing_cards": ("king", "ace")}
RECIPE = "short_pretrained_task_aligned"


class Way(NamedTuple):
    """A way to train: the records, and what differs from a training on them with the recipe."""

    records: str
    ignores: bool = False
    length: int = 1  # as a multiple of the steps


WAYS = {
    "plain": Way("plain"),
    "ignored": Way("ignored", ignores=True),
    "longer": Way("ignored", ignores=True, length=2),
    "pseudo": Way("pseudo", ignores=True),
    "joint": Way("joint"),
}


class Addition:
    """The addition of classes to a detector of a data set, with a seed."""

    def __init__(self, arguments: argparse.Namespace, data_set: str, seed: int):
        self._data, self._steps = Path(arguments.data) / data_set, arguments.steps
        self._folder = Path(arguments.output_dir) / f"{data_set}-{seed}"
        self._cell = Cell(data_set, RECIPE, seed)
        self._contents = {
            split: json.loads((self._data / f"annotations/instances_{split}.json").read_text(encoding="utf-8"))
            for split in ("train", "test")
        }
        self._content = self._contents["train"]
        names = sorted(image["file_name"] for image in self._content["images"])
        random.Random(seed).shuffle(names)
        self._halves = {"old": names[::2], "new": names[1::2]}
        self._classes = {"new": NEW_CLASSES[data_set]}
        all_classes = [category["name"] for category in self._content["categories"]]
        self._classes["old"] = tuple(name for name in all_classes if name not in self._classes["new"])
        self._classes["all"] = tuple(all_classes)

    def measure(self) -> dict[str, dict[str, float]]:
        """Return the mean test AP of the old and of the new classes for `before` and for each way."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "classes.json").write_text(
            json.dumps({category["name"]: category["id"] for category in self._content["categories"]}), encoding="utf-8"
        )
        self._convert("before/old", self._halves["old"], "old", label_map=False)
        self._train("before", "before/*")
        found = {"before": self._measured("before")}
        start = {"pretrained_ckpt": self._folder / "models/before"}
        for name, way in WAYS.items():
            getattr(self, f"_{way.records}_records")()
            hparams = {"ignore_in_crowds": True} if way.ignores else {}
            self._train(name, f"{way.records}/*", hparams=hparams, length=way.length, **start)
            found[name] = self._measured(name)
        return found

    def _plain_records(self) -> None:
        self._convert("plain/new", self._halves["new"], "new")

    def _ignored_records(self) -> None:
        for half, names in self._halves.items():
            self._convert(f"ignored/{half}", names, half, labeled_classes=",".join(self._classes[half]))

    def _pseudo_records(self) -> None:
        detected = self._folder / "detected"
        if not (detected / "coco.json").exists():
            images = self._folder / "new_images"
            images.mkdir(exist_ok=True)
            for name in self._halves["new"]:
                if not (images / name).exists():
                    os.link(self._data / "images" / name, images / name)
            model = self._folder / "models/before"
            run(self._folder, "infer", model=model, image_path=images, format="coco", output_dir=detected, batch_size=8)
        self._convert("pseudo/old", self._halves["old"], "old", labeled_classes=",".join(self._classes["old"]))
        of_new = {"labeled_classes": ",".join(self._classes["new"]), "pseudo_labels": detected / "coco.json"}
        self._convert("pseudo/new", self._halves["new"], "new", **of_new)

    def _joint_records(self) -> None:
        self._convert("joint/all", self._halves["old"] + self._halves["new"], "all")

    def _convert(
        self,
        name: str,
        images: Collection[str],
        labels: str,
        *,
        split: str = "train",
        label_map: bool = True,
        **flags: object,
    ) -> Path:
        """Convert images with the labels of the old, the new or all classes, and return the folder of the records."""
        records = self._folder / "records" / name
        if (records / f"{split}.report.json").exists():
            return records
        records.mkdir(parents=True, exist_ok=True)
        file = self._folder / "labels" / name / f"instances_{split}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        labeled = part(self._contents[split], images, self._classes[labels])
        file.write_text(json.dumps(labeled), encoding="utf-8")
        if label_map:
            flags["label_map_json_path"] = self._folder / "classes.json"
        folders = {"images": self._data / "images", "annotations": file, "output_dir": records, "val_fraction": 0}
        run(self._folder, "dataset/create_tfrecord", **folders, **flags)
        return records

    def _train(self, name: str, records: str, *, hparams: dict | None = None, length: int = 1, **start: object) -> None:
        if (self._folder / "models" / f"{name}.json").exists():
            return
        table = yaml.safe_load((ROOT / "benchmarks/recipes.yaml").read_text(encoding="utf-8"))
        recipe = {**table["recipes"][RECIPE], "cost_of": {}}
        recipe["hparams"] = {**recipe["hparams"], **(hparams or {})}
        flags = training_flags(recipe, self._cell, table, steps=length * self._steps)
        model = self._folder / "models" / name
        run(
            self._folder,
            "train",
            training_file_pattern=self._folder / "records" / records / "train-*",
            model_dir=model,
            **(flags | start),
        )
        images = [image["file_name"] for image in self._contents["test"]["images"]]
        labels = "old" if name == "before" else "all"
        test = self._convert(f"test/{labels}", images, labels, split="test", label_map=labels == "all")
        run(
            self._folder,
            "eval",
            ckpt=model,
            val_file_pattern=test / "test-*",
            output_json=model.with_suffix(".json"),
            bootstrap=0,
        )

    def _measured(self, name: str) -> dict[str, float]:
        content = json.loads((self._folder / "models" / f"{name}.json").read_text(encoding="utf-8"))
        of_class = content["class_ap"]
        return {
            part: float(np.mean([of_class.get(one, np.nan) for one in self._classes[part]])) for part in ("old", "new")
        }


def main() -> None:
    """Measure, and write the table after each seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("EFFICIENTDET_DATA"), help="Folder of the data sets.")
    parser.add_argument("--data_sets", default=",".join(NEW_CLASSES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=600, help="Training steps of 4 images.")
    parser.add_argument("--output_dir", default="runs/new_class")
    arguments = parser.parse_args()
    arguments.output_dir = str(Path(arguments.output_dir).resolve())
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in arguments.data_sets.split(",")}
    for seed in map(int, arguments.seeds.split(",")):
        for data_set, of_seeds in found.items():
            of_seeds.append(Addition(arguments, data_set, seed).measure())
            lines = ["| data set | training | AP of the old classes | AP of the new classes |", "|---|---|---|---|"]
            for name, measured in found.items():
                for way in ("before", *WAYS) if measured else ():
                    old, new = (with_error(np.array([one[way][part] for one in measured])) for part in ("old", "new"))
                    lines.append(f"| {name} | `{way}` | {old} | {'' if way == 'before' else new} |")
            (Path(arguments.output_dir) / "new_class.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
            print(f"{data_set}, seed {seed}: {of_seeds[-1]}", flush=True)


if __name__ == "__main__":
    main()
