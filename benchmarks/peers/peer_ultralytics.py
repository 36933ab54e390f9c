r"""Train ultralytics' YOLO from random weights on a data set of compare_recipes.py, with its own defaults.

    python -m venv peer && peer/bin/pip install ultralytics pycocotools
    taskset -c 0 peer/bin/python benchmarks/peers/peer_ultralytics.py --data=$DATA/bccd --minutes=32 \
        --output_dir=runs/peer

The program has one thread, so that minutes are CPU minutes if nothing else runs on its core. `--minutes` is the time of
the training, validation after each epoch included; the length of ultralytics' schedule follows from it. Writes
`result.json` with COCO's AP on the test images by pycocotools, of the weights with the best validation AP.
"""

import functools
import json
import operator
import resource
import sys
import time
from pathlib import Path

import torch
from peer_training import Detections, annotations, evaluate, training_flags
from ultralytics import YOLO


def main() -> None:
    """Train, evaluate and write the result."""
    parser = training_flags(__doc__.splitlines()[0])
    parser.add_argument("--model", default="yolo11n.yaml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.output_dir.resolve()
    write_labels(arguments.data, folder, "val")
    names = write_labels(arguments.data, folder, "train")
    settings = {"path": str(folder), "names": dict(enumerate(names)), "train": "train.txt", "val": "val.txt"}
    (folder / "data.yaml").write_text(json.dumps(settings))  # JSON is YAML
    begun = time.monotonic()
    model = YOLO(arguments.model, task="detect")
    model.train(
        data=str(folder / "data.yaml"),
        imgsz=arguments.size,
        time=arguments.minutes / 60,
        seed=arguments.seed,
        device="cpu",
        workers=0,
        plots=False,
        project=str(folder),
        name="run",
        exist_ok=True,
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "versions": {name: sys.modules[name].__version__ for name in ("ultralytics", "torch")},
        "settings": {key: str(value) for key, value in vars(arguments).items()},
        "epochs": len((folder / "run" / "results.csv").read_text().splitlines()) - 1,
        "minutes": round((time.monotonic() - begun) / 60, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    best = YOLO(folder / "run" / "weights" / "best.pt")
    for split in ("val", "test"):
        result[split] = evaluate(arguments.data, split, functools.partial(detect, best, size=arguments.size))
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def write_labels(data: Path, folder: Path, split: str) -> list[str]:
    """Write the images of a split as links and their labels in YOLO's format; return the class names."""
    truth = annotations(data, split)
    categories = sorted(truth["categories"], key=operator.itemgetter("id"))
    rows = {category["id"]: row for row, category in enumerate(categories)}
    lines: dict[int, list[str]] = {image["id"]: [] for image in truth["images"]}
    sizes = {image["id"]: (image["width"], image["height"]) for image in truth["images"]}
    for annotation in truth["annotations"]:
        (width, height), (x, y, w, h) = sizes[annotation["image_id"]], annotation["bbox"]
        box = ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
        lines[annotation["image_id"]].append(" ".join(map(str, (rows[annotation["category_id"]], *box))))
    for kind in ("images", "labels"):
        (folder / kind / split).mkdir(parents=True, exist_ok=True)
    for image in truth["images"]:
        link = folder / "images" / split / Path(image["file_name"]).name
        if link.is_symlink():  # of an earlier call; anything else is refused by the next line
            link.unlink()
        link.symlink_to((data / "images" / image["file_name"]).resolve())
        (folder / "labels" / split / f"{link.stem}.txt").write_text("\n".join(lines[image["id"]]))
    (folder / f"{split}.txt").write_text("".join(f"{path}\n" for path in sorted((folder / "images" / split).iterdir())))
    return [category["name"] for category in categories]


def detect(model: YOLO, image: Path, *, size: int) -> Detections:
    """Return the detections of an image with the thresholds of ultralytics' own validation."""
    boxes = model.predict(image, imgsz=size, conf=0.001, iou=0.7, max_det=300, device="cpu", verbose=False)[0].boxes
    return zip(boxes.xyxy.tolist(), boxes.conf.tolist(), boxes.cls.tolist(), strict=True)


if __name__ == "__main__":
    main()
