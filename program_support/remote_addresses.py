"""Remote addresses such as s3://BUCKET/FOLDER/FILE, which a plugin reads and writes."""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from program_support.plugins import load_plugin

_ADDRESS = re.compile(r"\A(az|gs|hf|memory|s3):/{1,2}(?!/)")


class Named(Protocol):
    """An image of a data set."""

    file_name: str


Image = TypeVar("Image", bound=Named)


class Storage(Protocol):
    """Files at remote addresses; each method raises InputError with the address of what cannot be read or written."""

    def local_copies(self, pattern: str, *, beside: Collection[str] = ()) -> list[str]:
        """Return the paths of local copies of the files that match a pattern, sorted; copy what is new or changed.

        beside: suffixes of other files of the folder that are copied, too.
        """

    def local_tree(self, address: str, *, leave_out: Collection[str]) -> str:
        """Return the path of a local copy of a file, or of a folder without files with the suffixes `leave_out`."""

    def listing(self, folder: str) -> Mapping[str, tuple[int, int]]:
        """Return size in bytes and version of each file below a folder, by relative name, without hidden files."""

    def forget_listings(self) -> None:
        """Read folders again that were listed before."""

    def read(self, path: str | os.PathLike[str]) -> bytes:
        """Return the content of an image; raise FileNotFoundError if there is none."""

    def read_ahead(self, images: Iterable[Image], folder: str | Path) -> Iterator[Image]:
        """Yield images; while one is in use, `read` has its file in memory."""

    def local_output(self, folder: str) -> str:
        """Return the local folder in which a conversion works for a remote output folder."""

    def states(self, config: Any) -> contextlib.AbstractContextManager[None]:
        """Exchange the state of a conversion with the remote output folder before and after the block."""

    def on_this_machine(self, task: Any) -> Any:
        """Return the task of a shard with paths of this machine."""

    def upload_shard(self, task: Any) -> None:
        """Upload a finished shard and its state."""

    def publish(self, config: Any) -> None:
        """Give uploaded shards their final names, and upload the files beside them."""


def storage() -> Storage:
    """Return the files at remote addresses."""
    found: Storage = load_plugin("efficientdet.storage", "fsspec")
    return found


def read_ahead(images: Iterable[Image], folder: str | Path) -> Iterator[Image]:
    """Yield images; files at a remote address are fetched several at a time while others are in use."""
    return storage().read_ahead(images, folder) if is_remote(folder) else iter(images)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address that this module reads: az://, gs://, hf://, memory:// or s3://.

    A `Path` of an address has one '/' there.
    """
    return _ADDRESS.match(os.fsdecode(path)) is not None


def address_of(path: str | os.PathLike[str]) -> str:
    """Return the address that a remote path was made from."""
    return _ADDRESS.sub(r"\1://", os.fsdecode(path))
