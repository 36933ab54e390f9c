"""Convert arguments of the Python interface to options, and run an operation without lasting changes to the process."""

import contextlib
import glob
import operator
import os
import random
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from efficientdet.options.removed_flags import ALIASES, GONE
from program_support.checked_fields import Config, field_types, help_of, plain_types
from program_support.errors import InputError
from program_support.other_flag_names import unknown_name_hint
from program_support.signals import exit_code, in_a_users_process

_SWITCH = {"true": True, "1": True, "false": False, "0": False}


def call(operation: Callable[[Config], Any], options: type[Config], name: str, /, **arguments: Any) -> Any:
    """Run the operation of the function `name` with the options that `arguments` state; None: not given.

    Raises:
        TypeError: for an argument that is no option.
        InputError: for an invalid value.
        KeyboardInterrupt: after Ctrl-C.
    """
    kinds, aliases, removed = field_types(options), ALIASES.get(name, {}), GONE.get(name, {})
    names = (*kinds, *aliases, *removed)
    with _python_errors(), in_a_users_process(), _random_state_and_options():
        given = {}
        for key, value in arguments.items():
            _require_known(key, names, function=name)
            if key in removed and value is not None and str(value) not in removed[key].passes:
                raise InputError(f"{key}={value}: has been removed: {removed[key].reason}")
            if key not in removed and value is not None:
                key = aliases.get(key, key)
                given[key] = _converted(value, kinds[key], name=key)
        return operation(options(**given))


def _converted(value: Any, kind: Any, *, name: str) -> Any:
    """Return a value as the type of an option: paths become text, NumPy's numbers Python's, sequences tuples."""
    plain = plain_types(kind)[0]
    if isinstance(value, Mapping):
        return value
    if plain is tuple:
        note = help_of(kind)
        alone = [value] if note and note.repeats else str(value).split(",")
        return tuple(map(str, alone if isinstance(value, str | os.PathLike) else value))
    try:
        if isinstance(value, os.PathLike) or plain is str:
            return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        if plain is bool and isinstance(value, str):
            if value.lower() not in _SWITCH:
                raise ValueError("expected true or false")
            return _SWITCH[value.lower()]
        return operator.index(value) if plain is int and not isinstance(value, str) else plain(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value}: {error}") from error


def records_in(path: str | os.PathLike[str], split: str) -> str:
    """Return the glob of a split's records if `path` is a folder that has them, else `path`."""
    return folder_records(path, split) or os.fspath(path)


def folder_records(folder: str | os.PathLike[str], split: str) -> str | None:
    """Return the glob of a split's records in a folder; None if it has none or is not a folder."""
    pattern = os.path.join(glob.escape(os.fspath(folder)), f"{split}-*")
    return pattern if os.path.isdir(folder) and glob.glob(pattern) else None


def _require_known(key: str, names: Collection[str], *, function: str) -> None:
    if key not in names:
        hint = unknown_name_hint(key, names).replace("--", "")
        raise TypeError(f"{function}() has no argument {key!r}" + (f"; {hint}" if hint else ""))


@contextlib.contextmanager
def _python_errors() -> Iterator[None]:
    """Let messages begin with an argument, not a flag; turn the exit code of Ctrl-C into KeyboardInterrupt."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).removeprefix("--")) from error.__cause__
    except SystemExit as error:
        if error.code != exit_code(signal.SIGINT):
            raise
        raise KeyboardInterrupt("stopped; the same call continues") from None


@contextlib.contextmanager
def _random_state_and_options() -> Iterator[None]:
    """Restore the random state of Python and NumPy and the options of TensorFlow that a training changes."""
    state, numpy_state, options = random.getstate(), np.random.get_state(), _tensorflow_options()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        if tensorflow := sys.modules.get("tensorflow"):
            eagerly, optimizer = options or (False, {})
            tensorflow.config.run_functions_eagerly(eagerly)
            tensorflow.config.optimizer.set_experimental_options(
                {"disable_meta_optimizer": optimizer.get("disable_meta_optimizer", False)}
            )


def _tensorflow_options() -> tuple[bool, dict[str, bool]] | None:
    """Return whether functions run eagerly, and the graph optimizer's options; None before TensorFlow is imported."""
    if tensorflow := sys.modules.get("tensorflow"):
        config = tensorflow.config
        return config.functions_run_eagerly(), config.optimizer.get_experimental_options()
    return None
