"""Train neck and heads of EfficientDet-Lite0 on drawn scenes and on all data sets but one, which then starts from them.

`python benchmarks/pretrain_heads.py --data=DATA --held_out=bccd,playing_cards` trains a model for each name, in
`runs/pretraining/NAME/model`, from which the recipe `short_pretrained` of recipes.yaml starts on that data set. It has
seen none of its images. All splits of the other data sets are used, whose classes stay apart. `--held_out=none --store`
trains on the training images of all data sets and stores the model as the starter detector of the package.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from compare_recipes import Cell, training_flags

from efficientdet.checkpoints.checkpoint import checkpoint_prefix, read_bundle, write_arrays
from efficientdet.weights.downloads import SHIPPED

ROOT = Path(__file__).resolve().parents[1]
DRAWN, DRAWN_IMAGES = "drawn", 400
NONE = "none"  # is held out
DATA_SETS = ("bccd", "deeppcb", "nuclei", "playing_cards")
RECIPE = "pretraining"


def add(content: dict, name: str, folder: Path, images: Path, *, splits: str = "*") -> None:
    """Add splits of a data set to COCO's content, and links to their images below `images`/NAME."""
    ids: dict[str, int] = {one["name"]: one["id"] for one in content["categories"]}
    (images / name).mkdir(parents=True, exist_ok=True)
    for file in sorted((folder / "annotations").glob(f"instances_{splits}.json")):
        added = json.loads(file.read_text(encoding="utf-8"))
        for category in added["categories"]:
            category["name"] = f"{name} {category['name']}"
            ids.setdefault(category["name"], len(ids) + 1)
        names, numbers = {one["id"]: one["name"] for one in added["categories"]}, {}
        for image in added["images"]:
            source = folder / ("train" if name == DRAWN else "images") / image["file_name"]
            if not source.exists():  # drawn validation images
                continue
            link = images / name / image["file_name"]
            if not link.exists():
                link.symlink_to(source)
            numbers[image["id"]] = len(content["images"]) + 1
            content["images"].append({**image, "id": numbers[image["id"]], "file_name": f"{name}/{image['file_name']}"})
        for one in added["annotations"]:
            if one["image_id"] in numbers:
                changes = {
                    "id": len(content["annotations"]) + 1,
                    "image_id": numbers[one["image_id"]],
                    "category_id": ids[names[one["category_id"]]],
                }
                content["annotations"].append({key: one[key] for key in ("bbox", "area", "iscrowd")} | changes)
    content["categories"] = [{"id": number, "name": name} for name, number in ids.items()]


def store_starter(model: Path) -> None:
    """Store the averaged weights of a trained model in the package, its kernels as float16."""
    arrays, description = read_bundle(checkpoint_prefix(model / "ema_weights"))
    assert description is not None  # train.py writes it
    halved = {name: array.astype(np.float16) if array.ndim > 1 else array for name, array in arrays.items()}
    write_arrays(str(SHIPPED / f"{description.model_name}-starter"), halved, description, newest=False)


def run(program: str, *words: str, **flags: object) -> None:
    """Run a program of this checkout."""
    subprocess.run(
        [sys.executable, *words, program, *(f"--{key}={value}" for key, value in flags.items())], cwd=ROOT, check=True
    )


def main() -> None:
    """Train a model for each held-out data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("EFFICIENTDET_DATA"), help="Folder of the data sets.")
    parser.add_argument("--held_out", default=",".join(DATA_SETS))
    parser.add_argument("--steps", type=int, default=2400, help="Training steps of 4 images.")
    parser.add_argument("--output_dir", default="runs/pretraining")
    parser.add_argument("--store", action="store_true", help="Store the model as the package's starter detector.")
    arguments = parser.parse_args()
    output, data = Path(arguments.output_dir).resolve(), Path(arguments.data).resolve()
    drawn = output / DRAWN
    if not drawn.exists():
        settings = {"train_images": DRAWN_IMAGES, "val_images": 1, "image_size": 256, "seed": 11}
        run("dataset.synthetic", "-m", output_dir=drawn, **settings)
    table = yaml.safe_load((ROOT / "benchmarks/recipes.yaml").read_text(encoding="utf-8"))
    table["data_sets"][NONE] = {"hparams": {}}
    for held_out in arguments.held_out.split(","):
        folder = output / held_out
        content: dict[str, list] = {"images": [], "annotations": [], "categories": []}
        for name in [name for name in DATA_SETS if name != held_out]:
            add(content, name, data / name, folder / "images", splits="train" if held_out == NONE else "*")
        add(content, DRAWN, drawn, folder / "images")
        (folder / "instances.json").write_text(json.dumps(content), encoding="utf-8")
        if not (folder / "records/train.report.json").exists():
            run(
                "dataset/create_tfrecord.py",
                images=folder / "images",
                annotations=folder / "instances.json",
                output_dir=folder / "records",
                val_fraction=0.02,
            )
        flags = training_flags(table["recipes"][RECIPE], Cell(held_out, RECIPE, 0), table, steps=arguments.steps)
        records = {"training_file_pattern": folder / "records/train-*", "model_dir": folder / "model"}
        run("train.py", **{**flags, "checkpoint_period": flags["num_epochs"]}, **records)
        if arguments.store:
            store_starter(folder / "model")


if __name__ == "__main__":
    main()
