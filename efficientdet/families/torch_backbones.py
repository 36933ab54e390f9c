"""Backbones that torchvision publishes weights of, in the families that are built on them."""

from object_detection.errors import InputError

# Its weights that the published trainings start from (the first ones of each)
IMAGENET_FILES = {"resnet18": "resnet18-f37072fd.pth", "resnet34": "resnet34-b627a593.pth",
                  "resnet50": "resnet50-0676ba61.pth", "resnext50_32x4d": "resnext50_32x4d-7cdf4587.pth"}


def refuse_other_backbones(backbone_weights: str | None, *, model_name: str, file: str) -> None:
    """Raises InputError for any: a backbone of torchvision's is loaded into a detector as any checkpoint is."""
    if backbone_weights:
        raise InputError(f"--backbone_init={backbone_weights}: is no file that {model_name} can start from; wanted "
                         f"torchvision's {file}, a checkpoint of ours, or imagenet")
