"""Published weight files, by the names that --backbone_init, --pretrained_ckpt and scripts/get_weights.sh accept.

Each family lists its files as PUBLISHED_FILES in its module `presets`, a plugin in the group
`efficientdet.published_files`. These modules need only the standard library, because scripts/get_weights.sh runs before
anything is installed. URLs, sizes and accuracies are those in torchvision 0.28
(`torchvision/models/resnet.py`, `detection/*.py`); docs/guides/weights.md lists which training starts from which file.
"""

import importlib
import os
import pkgutil
import re
from dataclasses import dataclass
from functools import cache

from program_support.plugins import load_plugins

TORCHVISION = "https://download.pytorch.org/models"
_ARCHIVES = (".tar.gz", ".tgz")


@dataclass(frozen=True)
class PackagedFile:
    """Weights as a package of the Python Package Index has them.

    path: the file, below the folder of imported packages.
    """

    package: str
    path: str
    sha256: str


@dataclass(frozen=True)
class PublishedFile:
    """A published file. `size` in bytes is approximate (published in MiB with three decimals), or None.

    md5: for a file of keras.applications, which Keras may have downloaded before.
    """

    file: str
    size: int | None
    holds: str
    published: str  # accuracy stated by the publisher
    site: str = TORCHVISION
    sha256: str = ""  # if the file name has no digits of it
    md5: str = ""
    packaged: PackagedFile | None = None

    @property
    def url(self) -> str:
        """URL of the file."""
        return f"{self.site}/{self.file}"

    @property
    def sha256_prefix(self) -> str:
        """SHA-256 or its first digits, which the file name may have; "" if neither is known."""
        match = re.search(r"-([0-9a-f]{8,64})\.", self.file)
        return match[1] if match else self.sha256

    @property
    def is_archive(self) -> bool:
        """Return whether the file is unpacked to a folder of its name."""
        return self.file.endswith(_ARCHIVES)

    @property
    def stem(self) -> str:
        """File name without suffix."""
        return self.file.rsplit(".", 1)[0].removesuffix(".tar")


def torchvision_file(file: str, mebibytes: float, holds: str, published: str) -> PublishedFile:
    """Return a file that torchvision publishes, of the size that torchvision states."""
    return PublishedFile(file, round(mebibytes * 2**20), holds, published)


CLASSIFIER = "classifier of ImageNet: a backbone"
_V1 = "top-1 {}"
_V2 = "top-1 {}, torchvision's longer recipe"

# If torchvision has several files of a backbone, the short name is the file that the published detectors use.
BACKBONES = {
    "resnet18": torchvision_file("resnet18-f37072fd.pth", 44.661, CLASSIFIER, _V1.format("69.758")),
    "resnet34": torchvision_file("resnet34-b627a593.pth", 83.275, CLASSIFIER, _V1.format("73.314")),
    "resnet34-2017": torchvision_file("resnet34-333f7ec4.pth", 83.26, CLASSIFIER, _V1.format("73.3")),  # MLPerf's SSD
    "resnet50": torchvision_file("resnet50-0676ba61.pth", 97.781, CLASSIFIER, _V1.format("76.130")),
    "resnet50-v2": torchvision_file("resnet50-11ad3fa6.pth", 97.79, CLASSIFIER, _V2.format("80.858")),
    "resnext50_32x4d": torchvision_file("resnext50_32x4d-7cdf4587.pth", 95.789, CLASSIFIER, _V1.format("77.618")),
    "resnext50_32x4d-v2": torchvision_file("resnext50_32x4d-1a0047aa.pth", 95.833, CLASSIFIER, _V2.format("81.198")),
}


def by_short_name() -> dict[str, PublishedFile]:
    """Return the files of all families by their short names; the backbones that families share come first."""
    files = dict(BACKBONES)
    for family in sorted(pkgutil.iter_modules([os.path.dirname(__file__)])):
        if family.ispkg:
            presets = importlib.import_module(f"{__package__}.{family.name}.presets")
            files.update(getattr(presets, "PUBLISHED_FILES", {}))
    for plugin in load_plugins("efficientdet.published_files"):
        files.update(plugin)
    return files


@cache
def published_files() -> dict[str, PublishedFile]:
    """Return the files by every accepted name: short name, file name, and file name without suffix."""
    files = by_short_name()
    return files | {name: file for file in files.values() for name in (file.file, file.stem)}


def table() -> list[str]:
    """Return a line for each file: short name, file name, size and content."""
    lines = []
    for name, file in by_short_name().items():
        size = f"{file.size / 1e6:4.0f} MB" if file.size else ""
        lines.append(f"{name:28} {file.file:42} {size:7}  {file.holds}, {file.published}")
    return lines
