"""Safe extraction of untrusted .tar.gz archives of checkpoints."""

import gzip
import os
import tarfile
import tempfile
import zlib
from pathlib import Path

from dataset.files.untrusted_values import shown
from program_support.errors import InputError

_LARGEST = 2**33  # bytes of all files; D7x with its optimizer state has 1 GB
_MOST_FILES = 1000


def unpack_checkpoint(archive: Path, folder: Path) -> None:
    """Extract the checkpoint in an archive to a folder, atomically.

    Raises:
        InputError: for members that are neither files nor folders, paths outside of the archive and sizes beyond
            any checkpoint; OSError of the disk.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                _extract(tar, temporary)
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, UnicodeError, ValueError) as error:
            raise InputError(f"{archive}: cannot be extracted ({error}); remove it and run this again") from error
        except OSError as error:
            place = shown(error.filename or str(folder.parent))
            raise InputError(f"{archive}: cannot be extracted ({place}: {error.strerror})") from error
        folders = sorted({index.parent for index in Path(temporary).rglob("*.index")})
        if len(folders) != 1:
            raise InputError(f"{archive}: has checkpoints in {len(folders)} folders; expected one")
        try:
            os.replace(folders[0], folder)
        except OSError:
            if not folder.is_dir():  # else another process was first
                raise


def _extract(tar: tarfile.TarFile, folder: str) -> None:
    size = 0
    for number, member in enumerate(tar):
        size += member.size
        if number >= _MOST_FILES or size > _LARGEST:
            raise ValueError(f"more than {_MOST_FILES} files or {_LARGEST >> 30} GiB")
        if not (member.isfile() or member.isdir()):
            raise ValueError(f"{member.name!r} is neither a file nor a folder")
        tar.extract(member, folder, filter="data")
