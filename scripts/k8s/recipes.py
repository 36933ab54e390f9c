"""Recipe of each model: batch size per GPU memory, learning rate per batch size, command of a process."""

import re
import string
from pathlib import Path
from typing import Any

import yaml

NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_RECIPES = yaml.safe_load(Path(__file__).with_name("recipes.yaml").read_text(encoding="utf-8"))
_RECIPES.pop("coco")
_BACKBONES = {"retinanet-resnext50": "resnext50_32x4d", "ssd300-resnet34": "resnet34-2017"}
# Dell's four L40S; t9k's four GPUs with 24 GB used 1e-4 for 56 images and missed the target
_SMALL_RETINANET, _SMALL_RATE = 64, 6e-5


def checked_name(name: str, longest: int) -> str:
    """Return the name of a job, of which the operators make a Service."""
    if not re.fullmatch(f"(?=[a-z]){NAME}", name) or len(name) > longest:
        raise ValueError(
            f"--name={name}: expected lowercase letters, digits and hyphens, a letter first, at most {longest}"
        )
    return name


def recipe_of(model: str) -> dict[str, Any]:
    """Return the recipe of a model.

    Raises:
        ValueError: if there is none.
    """
    for prefix, recipe in _RECIPES.items():
        if model.startswith(prefix) and re.fullmatch(NAME, model):
            return recipe
    models = ", ".join(f"{prefix}.." for prefix in _RECIPES)
    raise ValueError(f"--model={model}: expected a train.py --model_name among {models}")


def backbone_of(model: str) -> str | None:
    """Return the name of the pretrained backbone for scripts/get_weights.sh; None if Keras downloads it."""
    if model.startswith("efficientdet-"):
        return None
    model = model.removesuffix("-dle").replace("mask-rcnn-", "retinanet-")  # both start from torchvision's backbones
    return _BACKBONES.get(model, model.partition("-")[2])


def _batch_size(recipe: dict[str, Any], gpus: int, gpu_memory: int) -> int:
    """Return the images per GPU: as many as fit, within the largest global batch with a published recipe."""
    return max(1, min(recipe["batch_sizes"][gpu_memory], recipe["largest_batch"] // gpus))


def advice(*, model: str, gpus: int, gpu_memory: int, extra: tuple[str, ...]) -> str:
    """Return advice on the batch size and learning rate of a job; empty if there is none."""
    images = gpus * _batch_size(recipe_of(model), gpus, gpu_memory)
    rates = [flag.partition("=")[2] for flag in extra if flag.startswith("--lr=")]
    try:
        rate = float(rates[-1]) if rates else 0.0
    except ValueError:
        return ""  # train.py reports what is wrong with such a learning rate
    if not model.startswith("retinanet-") or images > _SMALL_RETINANET or rate <= _SMALL_RATE:
        return ""
    pairs = "56 at 1e-4 did not reach 0.34, 64 at 6e-5 did"
    return f"{images} images per step at {rate:g}: {pairs}; --lr=6e-5 is advised"


def training_command(model: str, name: str, *, gpus: int, gpu_memory: int, epochs: int) -> list[str]:
    """Return the command of one process.

    EfficientDet's reference changes warm-up and weight average above 512 images. RetinaNet's learning rate is not
    proportional to the batch size: 1e-4 in t9k's jobs and in NVIDIA's with 256 to 1,280 images. Mask R-CNN's is 0.02
    for 16 images in NVIDIA's reference.
    """
    recipe = recipe_of(model)
    data, batch_size = f"/pvc/{recipe['data']}", _batch_size(recipe, gpus, gpu_memory)
    images = gpus * batch_size
    is_large = images > 512
    rates = {
        "warmup_epochs": 25 if is_large else 5,
        "averages": f"moving_average_decay={'0.999,momentum=0.93' if is_large else '0.9999,momentum=0.9'}",
        "retinanet_rate": f"{_SMALL_RATE if images <= _SMALL_RETINANET else 1e-4:g}",
        "mask_rcnn_rate": f"{0.00125 * images:g}",
    }
    return [
        ".venv/bin/python",
        "train.py",
        "--training_mode=traineval",
        f"--training_file_pattern={data}/train-*",
        f"--val_file_pattern={data}/{recipe['validation']}",
        *([f"--val_json_file={data}/{recipe['annotations']}"] if recipe["annotations"] else []),
        f"--model_name={model}",
        f"--model_dir=/pvc/runs/{name}",
        "--backbone_init=imagenet",
        f"--batch_size={batch_size}",
        f"--eval_batch_size={batch_size}",
        f"--num_epochs={epochs}",
        *(string.Template(flag).substitute(rates) for flag in recipe["flags"]),
        *([f"--mlperf_log=/pvc/runs/{name}/mlperf.log,-"] if recipe["is_mlperf"] else []),  # - is the pod's log
    ]
