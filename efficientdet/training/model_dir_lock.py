"""The lock of a model_dir: two trainings in one folder would remove each other's checkpoints."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from efficientdet.devices.distributed import World
from program_support.command_line import USER_ERROR_EXIT_CODE
from program_support.errors import InputError
from program_support.file_lock import LockedError, held_lock

FILE_NAME = "lock"


@contextlib.contextmanager
def sole_training(model_dir: str, world: World) -> Iterator[str]:
    """Hold the lock of a model_dir during a block; yield a warning if the file system has no locks, else "".

    The first rank holds it for all.

    Raises:
        InputError: on the first rank where another training holds it; the other ranks exit with the same code and
            without a message.
    """
    with contextlib.ExitStack() as stack:
        refused, warning = world.gather(_lock(Path(model_dir), stack) if world.is_first else None)[0]
        if refused and not world.is_first:
            raise SystemExit(USER_ERROR_EXIT_CODE)
        if refused:
            raise InputError(refused)
        yield warning


def _lock(folder: Path, stack: contextlib.ExitStack) -> tuple[str, str]:
    """Acquire the lock until the stack is closed; return an error message and a warning, each "" if there is none."""
    try:
        locked = stack.enter_context(held_lock(folder / FILE_NAME))
    except LockedError as holder:
        return (
            f"{folder}: another training ({holder}) writes into this folder; wait until it ends or use another "
            "--model_dir"
        ), ""
    return "", "" if locked else f"warning: {folder}: no file locks here: a second training in it would go undetected"
