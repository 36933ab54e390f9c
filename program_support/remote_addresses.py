"""Remote addresses such as s3://BUCKET/FOLDER/FILE: no other module knows fsspec, which opens them."""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

from program_support.errors import InputError

_INSTALL = {  # scheme -> how to install the package that fsspec needs for it
    "az": "pip install adlfs",
    "gs": "pip install gcsfs",
    "hf": "pip install -e '.[hub]'",
    "memory": "pip install fsspec",
    "s3": "pip install -e '.[remote]'",
}
# In seconds, by botocore's names. s3fs itself makes five attempts
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 15, "retries": {"total_max_attempts": 1}}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"config_kwargs": _TIMEOUTS}}
_ADDRESS = re.compile(rf"\A({'|'.join(_INSTALL)}):/{{1,2}}(?!/)")
_CREDENTIALS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address that this module reads: az://, gs://, hf://, memory:// or s3://.

    A `Path` of an address has one '/' there.
    """
    return _ADDRESS.match(os.fsdecode(path)) is not None


def address_of(path: str | os.PathLike[str]) -> str:
    """Return the address that a remote path was made from."""
    return _ADDRESS.sub(r"\1://", os.fsdecode(path))


def opened(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it.

    An address is taken literally: fsspec itself would open another file system for each '::' in it.
    """
    import fsspec

    scheme = address.partition("://")[0]
    system = fsspec.filesystem(scheme, **_OPTIONS.get(scheme, {}))
    # gcsfs logs the traceback of what `remote_errors` says in one line
    logging.getLogger(type(system).__module__.partition(".")[0]).setLevel(logging.CRITICAL)
    return system, str(system._strip_protocol(address))


@contextlib.contextmanager
def remote_errors(address: str, *, doing: str = "read") -> Iterator[None]:
    """Raise an error of fsspec or of a client of it in the block as an InputError with the address.

    doing: participle of what is done with the address, for the message.

    Raises:
        OSError: the disk of this machine is full.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each client has its own classes
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:  # of the copy
            raise
        raise InputError(f"{address}: {_problem(error, address.partition('://')[0], doing)}") from error


def _problem(error: Exception, scheme: str, doing: str) -> str:
    reason = " ".join((str(error) or type(error).__name__).split())[:200]  # botocore's first line may be "..failed:"
    if isinstance(error, ImportError):
        return f"needs a package that is not installed ({reason}): {_INSTALL[scheme]}"
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket, folder or file ({reason})"
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "NoCredentials"):
        return f"access denied ({reason}); expected credentials with permission: {_CREDENTIALS.get(scheme, scheme)}"
    return f"cannot be {doing} ({reason}); check the network and the address of the server"
