"""Images and labels that come as a zip archive."""

import os
import shutil
import zlib
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from program_support.atomic_files import unfinished_folder
from program_support.errors import InputError

_OF_MACOS = "__MACOSX/"  # a second entry for each file, which is none


def unpacked(archive: str, folder: Path) -> str:
    """Unpack an archive into a folder that appears complete or not at all, and return the folder.

    Raises InputError, one line, for an archive that cannot be unpacked or is larger than the disk.
    """
    try:
        with ZipFile(archive) as files, unfinished_folder(folder) as unfinished:
            members = [member for member in files.infolist() if not member.filename.startswith(_OF_MACOS)]
            needed, free = sum(member.file_size for member in members), shutil.disk_usage(unfinished).free
            if needed > free:
                raise InputError(f"{archive}: unpacks to {needed:,} bytes; {folder.parent} has {free:,} bytes free")
            files.extractall(unfinished, members)
            shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed before it noted this step
            os.rename(unfinished, folder)
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise InputError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    return str(folder)
