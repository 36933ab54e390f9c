"""Files of weights that others publish, by the names that --backbone_init, --pretrained_ckpt and scripts/get_weights.sh take.

Addresses, sizes and figures are those in torchvision 0.28 (`torchvision/models/resnet.py`, `detection/*.py`) and in
google/automl's README; docs/weights.md says which published training starts from which.
"""

import re
from dataclasses import dataclass

TORCHVISION = "https://download.pytorch.org/models"
GOOGLE_AUTOML = "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet/coco2"
_ARCHIVE = ".tar.gz"


@dataclass(frozen=True)
class PublishedFile:
    """One file. `size` in bytes, about: it is published in MiB with three decimals, or not at all (None)."""

    file: str
    size: int | None
    holds: str
    published: str  # the accuracy that its publisher states
    site: str = TORCHVISION

    @property
    def url(self) -> str:
        """Where its publisher has it."""
        return f"{self.site}/{self.file}"

    @property
    def sha256_prefix(self) -> str:
        """The digits that its SHA-256 begins with, if the publisher writes them into the name."""
        found = re.search(r"-([0-9a-f]{8,64})\.", self.file)
        return found[1] if found else ""

    @property
    def is_archive(self) -> bool:
        """Whether it is unpacked to a folder of its name."""
        return self.file.endswith(_ARCHIVE)

    @property
    def stem(self) -> str:
        """The file's name without what says its format."""
        return self.file.removesuffix(_ARCHIVE) if self.is_archive else self.file.rsplit(".", 1)[0]


def _torchvision(file: str, mebibytes: float, holds: str, published: str) -> PublishedFile:
    return PublishedFile(file, round(mebibytes * 2**20), holds, published)


def _google_automl(model: str, ap: str) -> PublishedFile:
    return PublishedFile(f"{model}{_ARCHIVE}", None, "EfficientDet of COCO", f"box AP {ap}", GOOGLE_AUTOML)


_BACKBONE = "classifier of ImageNet: a backbone"
_V1 = "top-1 {}"
_V2 = "top-1 {}, torchvision's longer recipe"

# Where torchvision has several, the short name is what the published detectors start from; SSD300 starts from resnet34-2017.
_BY_SHORT_NAME = {
    "resnet18": _torchvision("resnet18-f37072fd.pth", 44.661, _BACKBONE, _V1.format("69.758")),
    "resnet34": _torchvision("resnet34-b627a593.pth", 83.275, _BACKBONE, _V1.format("73.314")),
    "resnet34-2017": _torchvision("resnet34-333f7ec4.pth", 83.26, _BACKBONE, _V1.format("73.3")),
    "resnet50": _torchvision("resnet50-0676ba61.pth", 97.781, _BACKBONE, _V1.format("76.130")),
    "resnet50-v2": _torchvision("resnet50-11ad3fa6.pth", 97.79, _BACKBONE, _V2.format("80.858")),
    "resnext50_32x4d": _torchvision("resnext50_32x4d-7cdf4587.pth", 95.789, _BACKBONE, _V1.format("77.618")),
    "resnext50_32x4d-v2": _torchvision("resnext50_32x4d-1a0047aa.pth", 95.833, _BACKBONE, _V2.format("81.198")),
    "retinanet_resnet50_fpn_coco": _torchvision(
        "retinanet_resnet50_fpn_coco-eeacb38b.pth", 130.267, "RetinaNet of COCO", "box AP 36.4"),
    "maskrcnn_resnet50_fpn_coco": _torchvision(
        "maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth", 169.84, "Mask R-CNN of COCO", "box AP 37.9, mask AP 34.6"),
    **{f"efficientdet-{size}": _google_automl(f"efficientdet-{size}", ap) for size, ap in (  # on val2017
        ("d0", "34.3"), ("d1", "40.2"), ("d2", "43.5"), ("d3", "46.8"), ("d4", "49.3"), ("d5", "51.2"), ("d6", "52.1"),
        ("d7", "53.4"), ("d7x", "54.4"))},
}

# Every name that is taken: short, that of the file, and that without its suffix.
PUBLISHED = {
    **_BY_SHORT_NAME,
    **{file.file: file for file in _BY_SHORT_NAME.values()},
    **{file.stem: file for file in _BY_SHORT_NAME.values()},
}


def table() -> list[str]:
    """A line for each file: the short name, what it is, its size."""
    return [f"{name:28} {file.file:42} {f'{file.size / 1e6:4.0f} MB' if file.size else '':7}  {file.holds}, {file.published}"
            for name, file in _BY_SHORT_NAME.items()]
