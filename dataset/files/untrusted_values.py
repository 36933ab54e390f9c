"""Values out of files of others: numbers and text that may be stored, and how any value is shown in one short line."""

import math
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from program_support.errors import InputError

LARGEST_ID = 10**18 - 1  # what a reader of records takes as a number; anything longer it hashes

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxlong = 40
_LONGEST_SHOWN = 450  # characters; a few levels of nesting multiply what is shown of each


def shown(value: Any) -> str:
    """A short `repr`: of bounded length, whatever is nested in the value, and free of what cannot be printed."""
    try:
        text = _short.repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"<{type(value).__name__} with an integer of thousands of digits>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def listed(values: Iterable[Any]) -> str:
    """As many of the values, joined by commas, as a message has room for."""
    text = ", ".join(map(str, values))
    return text if len(text) <= 600 else f"{text[:600]}, ..."


@contextmanager
def told_with(where: str) -> Iterator[None]:
    """Begins the message of an InputError with the place that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where} {error}") from error


def finite_number(value: Any, name: str) -> float:
    """A finite number; the message of the InputError lacks what it belongs to, which the caller knows."""
    if type(value) is not float and type(value) is not int:
        raise InputError(f"has {name} {shown(value)}, expected a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"has {name} {shown(value)}, expected a finite number")
    return number


def number_in_text(text: str, *, where: str) -> float:
    """The finite number that a text file writes; `where` begins the message of the InputError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} is {shown(text)}, expected a finite number")
    return number


def whole_number(value: Any, name: str, *, least: int = 0) -> int:
    """An integer, also one written as 1.0; InputError as `finite_number`."""
    if type(value) is not int and finite_number(value, name) % 1:
        raise InputError(f"has {name} {shown(value)}, expected an integer")
    integer = int(value)
    if not least <= integer <= LARGEST_ID:
        raise InputError(f"has {name} {shown(integer)}, expected {least} to {LARGEST_ID}")
    return integer


def storable_text(value: Any, name: str) -> str:
    """Text that UTF-8 and a C library can hold; InputError as `finite_number`.

    Half a surrogate pair ("\\ud800" in json, undecodable bytes in the name of a file) can be written nowhere.
    """
    if not isinstance(value, str):
        raise InputError(f"has {name} {shown(value)}, expected text")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"has {name} {shown(value)}, expected text without NUL that UTF-8 can hold")
    return value


def allowing_fraction(bad: int, total: int) -> str:
    """The smallest round value of --max_bad_fraction that lets this pass."""
    return f"{min(bad / total + 0.0005, 1.0):.3f}" if bad < total else "1"
