"""Recipe of each model: batch size per GPU memory, learning rate per batch size, location of the data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings with which one model is trained."""

    data: str  # folder of its records in the volume
    validation: str  # name of its validation records
    annotations: str | None  # COCO json below `data`; None: evaluated on the boxes in the records
    preparation: tuple[str, ...]  # the script that prepares the records, and its arguments after the folder
    batch_sizes: Mapping[int, int]  # images per GPU under mixed_float16, by GPU memory in GB
    largest_batch: int  # largest global batch size with a published recipe
    epochs: int
    flags: Callable[[int], tuple[str, ...]]  # flags that depend on the global batch size
    storage: str  # size requested for archives, images, records and runs
    is_mlperf: bool = True  # whether its jobs write and print an MLPerf log
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of the preparation

    def batch_size(self, gpus: int, gpu_memory: int) -> int:
        """Return the images per GPU: as many as fit, within the largest global batch with a published recipe."""
        return max(1, min(self.batch_sizes[gpu_memory], self.largest_batch // gpus))


def recipe_of(model: str) -> Recipe | None:
    """Return the recipe of a model; None if there is none."""
    return next((recipe for prefix, recipe in _RECIPES.items() if model.startswith(prefix)), None)


def backbone_of(model: str) -> str:
    """Return the name of the pretrained backbone for scripts/get_weights.sh; empty if Keras downloads it."""
    if model.startswith("efficientdet-"):
        return ""
    model = model.removesuffix("-dle").replace("mask-rcnn-", "retinanet-")  # both start from torchvision's backbones
    return _BACKBONES.get(model, model.partition("-")[2])


def models() -> str:
    """Return the models that have a recipe, for messages."""
    return ", ".join(f"{prefix}.." for prefix in _RECIPES)


def advice(model: str, global_batch_size: int, rate: float) -> str:
    """Return advice on a global batch size and learning rate; empty if there is none."""
    if model.startswith("retinanet-") and global_batch_size <= _SMALL_RETINANET and rate > _SMALL_RATE:
        return (
            f"{global_batch_size} images per step at {rate:g}: 56 at 1e-4 did not reach 0.34, 64 at 6e-5 did; "
            f"--lr=6e-5 is advised"
        )
    return ""


_BACKBONES = {"retinanet-resnext50": "resnext50_32x4d", "ssd300-resnet34": "resnet34-2017"}
# Dell's four L40S; t9k's four GPUs with 24 GB used 1e-4 for 56 images and missed the target
_SMALL_RETINANET, _SMALL_RATE = 64, 6e-5


def retinanet_rate(global_batch_size: int) -> float:
    """Return RetinaNet's learning rate.

    It is not proportional to the batch size: 1e-4 in t9k's jobs and in NVIDIA's with 256 to 1,280 images.
    """
    return _SMALL_RATE if global_batch_size <= _SMALL_RETINANET else 1e-4


def _efficientdet(global_batch_size: int) -> tuple[str, ...]:
    """Return the flags of EfficientDet; the reference changes warm-up and weight average above 512 images."""
    large = global_batch_size > 512
    averages = "moving_average_decay=0.999,momentum=0.93" if large else "moving_average_decay=0.9999,momentum=0.9"
    return (
        "--lr_per_64=0.088",
        f"--warmup_epochs={25 if large else 5}",
        "--amp=True",
        "--use_xla=True",
        f"--hparams={averages}",
    )


def _retinanet(global_batch_size: int) -> tuple[str, ...]:
    """Return the flags of RetinaNet: evaluation after every epoch until 0.34, no warm-up as in t9k's jobs."""
    return (
        f"--lr={retinanet_rate(global_batch_size):g}",
        "--warmup_epochs=0",
        "--eval_period=1",
        "--checkpoint_period=1",
        "--target_ap=0.34",
        "--amp=True",
        "--use_xla=True",
    )


def _ssd(global_batch_size: int) -> tuple[str, ...]:
    """Return the flags of SSD, whose learning rate is 2.5e-3 per 32 images."""
    return (
        "--eval_epochs=40,50,55,60,65,70,75,80",
        "--checkpoint_period=5",
        "--target_ap=0.23",
        "--amp=True",
        "--use_xla=True",
    )


def _mask_rcnn(global_batch_size: int) -> tuple[str, ...]:
    """Return the flags of Mask R-CNN.

    The learning rate of NVIDIA's reference is 0.02 for 16 images. The drops after 9.82 and 13.1 epochs are those of
    NVIDIA's MLPerf 2.1 submission with 96 images.
    """
    return (
        f"--lr={0.00125 * global_batch_size:g}",
        "--warmup_epochs=0.5",
        "--eval_period=1",
        "--checkpoint_period=1",
        "--target_ap=0.377",
        "--amp=True",
        "--use_xla=True",
        "--hparams=first_lr_drop_epoch=9.82,second_lr_drop_epoch=13.1",
    )


_COCO = {
    "data": "coco",
    "validation": "val-*",
    "annotations": "annotations/instances_val2017.json",
    "preparation": ("dataset/get_coco.sh",),
    "storage": "200Gi",
}
_RECIPES = {
    # 32 GB: 64 and 80 GB: 200 are the reference's; the others are interpolated between these two, rounded down.
    "efficientdet-": Recipe(
        **_COCO,
        batch_sizes={24: 40, 32: 64, 40: 80, 80: 200, 141: 200},
        largest_batch=2048,
        epochs=300,
        flags=_efficientdet,
        is_mlperf=False,
    ),
    # 24, 40 and 80 GB are t9k's; Dell trained 16 to 32 on an L40S of 48 GB, HPE and Cisco 40 on 80 and 141 GB.
    "retinanet-": Recipe(
        data="openimages",
        validation="validation-*",
        annotations=None,
        preparation=("dataset/get_open_images.sh", "--classes=mlperf", "--splits=train,validation"),
        batch_sizes={24: 14, 40: 36, 48: 32, 80: 72, 141: 72},
        largest_batch=1280,
        epochs=10,
        flags=_retinanet,
        storage="1Ti",
    ),
    # V100 of 16 and 32 GB, A100 of 40 GB and more.
    "ssd300-": Recipe(
        **_COCO,
        batch_sizes={16: 56, 24: 56, 32: 128, 40: 114, 80: 114, 141: 114},
        largest_batch=1536,
        epochs=80,
        flags=_ssd,
    ),
    # Of NVIDIA in MLPerf: A30 of 24 GB, V100 of 32 GB, A100 of 40 and 80 GB.
    "mask-rcnn-": Recipe(
        **{**_COCO, "data": "coco_masks"},
        batch_sizes={24: 4, 32: 6, 40: 8, 80: 12, 141: 12},
        largest_batch=128,
        epochs=14,
        flags=_mask_rcnn,
        environment={"COCO_MASKS": "1"},
    ),
}
