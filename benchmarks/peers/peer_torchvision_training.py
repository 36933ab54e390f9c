r"""Train torchvision's RetinaNet from random weights on a data set of compare_recipes.py, with its published recipe.

    python -m venv peer && peer/bin/pip install torch torchvision pycocotools
    taskset -c 0 peer/bin/python benchmarks/peers/peer_torchvision_training.py --data=$DATA/bccd --minutes=32 \
        --output_dir=runs/peer

`retinanet_resnet50_fpn` with the recipe of torchvision's references/detection: SGD, a learning rate of 0.01 per 16
images, linear warmup, two drops at 16 and 22 of 26 parts of the time, horizontal flips. All layers are trained. The
program has one thread, so that minutes are CPU minutes if nothing else runs on its core. Writes `result.json` with
COCO's AP on the validation and test images by pycocotools.
"""

import json
import resource
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from peer_training import Detections, annotations, evaluate, training_flags
from PIL import Image

RATE_PER_IMAGE, WARMUP_STEPS, DROPS = 0.01 / 16, 1000, (16 / 26, 22 / 26)


class Split(torch.utils.data.Dataset):
    """Images and boxes of a split; classes are counted from 0."""

    def __init__(self, data: Path, split: str):
        truth = annotations(data, split)
        self.rows = {number: row for row, number in enumerate(sorted(each["id"] for each in truth["categories"]))}
        self.images = [(image["id"], data / "images" / image["file_name"]) for image in truth["images"]]
        self.objects: dict[int, list] = {number: [] for number, _ in self.images}
        for each in truth["annotations"]:
            if min(each["bbox"][2:]) > 0:
                self.objects[each["image_id"]].append((each["bbox"], self.rows[each["category_id"]]))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        identity, path = self.images[number]
        pixels, objects = read(path), self.objects[identity]
        boxes = torch.tensor([box for box, _ in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        if torch.rand(()) < 0.5:
            pixels = pixels.flip(-1)
            boxes[:, [0, 2]] = pixels.shape[-1] - boxes[:, [2, 0]]
        return pixels, {"boxes": boxes, "labels": torch.tensor([row for _, row in objects], dtype=torch.int64)}


def read(path: Path) -> torch.Tensor:
    """Return an image as [3, h, w] float32, 0 to 1."""
    pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB")))
    return pixels.permute(2, 0, 1).float() / 255


def main() -> None:
    """Train, evaluate and write the result."""
    parser = training_flags(__doc__.splitlines()[0])
    parser.add_argument("--batch_size", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    begun, split = time.monotonic(), Split(arguments.data, "train")
    model = torchvision.models.detection.retinanet_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=len(split.rows),
        min_size=arguments.size,
        max_size=arguments.size,
    )
    steps = train(model, split, batch_size=arguments.batch_size, seconds=60 * arguments.minutes)
    used = resource.getrusage(resource.RUSAGE_SELF)
    result = {
        "versions": {module.__name__: module.__version__ for module in (torch, torchvision)},
        "settings": {key: str(value) for key, value in vars(arguments).items()},
        "steps": steps,
        "minutes": round((time.monotonic() - begun) / 60, 2),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
    }
    model.eval()
    for name in ("val", "test"):
        result[name] = evaluate(arguments.data, name, lambda path: detect(model, path))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    (arguments.output_dir / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def train(model: torch.nn.Module, split: Split, *, batch_size: int, seconds: float) -> int:
    """Train for some seconds and return the number of steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-4)
    batches = torch.utils.data.DataLoader(
        split, batch_size=batch_size, shuffle=True, drop_last=True, collate_fn=lambda pairs: zip(*pairs, strict=True)
    )
    # The warmup takes at most an epoch, as in the reference
    warmup = min(WARMUP_STEPS, len(batches) - 1)
    begun, steps = time.monotonic(), 0
    while True:
        for images, targets in batches:
            passed = (time.monotonic() - begun) / seconds
            if passed >= 1:
                return steps
            rate = RATE_PER_IMAGE * batch_size * min(1.0, (steps + 1) / warmup) * 0.1 ** sum(map(passed.__ge__, DROPS))
            optimizer.param_groups[0]["lr"] = rate
            loss = sum(model(list(images), list(targets)).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps % 20 == 0:
                print(
                    f"step {steps}, {100 * passed:.0f} %, learning rate {rate:.5f}, loss {loss.item():.3f}", flush=True
                )


@torch.no_grad()
def detect(model: torch.nn.Module, path: Path) -> Detections:
    """Return the detections of an image."""
    [found] = model([read(path)])
    return zip(found["boxes"].tolist(), found["scores"].tolist(), found["labels"].tolist(), strict=True)


if __name__ == "__main__":
    main()
