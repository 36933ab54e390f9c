"""Validate numbers and text of untrusted files, and format any value in one short line."""

import math
import re
import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from program_support.errors import InputError

LARGEST_ID = 10**18 - 1  # readers of records parse ids up to this as numbers and hash longer ones

_NUMBER = re.compile(r"\s*[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})(e[+-]?\d{1,3})?\s*", re.ASCII | re.IGNORECASE)
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")
_SET, _NOT_SET = {"1", "1.0", "true", "yes"}, {"0", "0.0", "false", "no", "unspecified", ""}

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 120
_short.maxlong = 40
_LONGEST_SHOWN = 450  # characters; nesting multiplies the limit of each level


def shown(value: Any) -> str:
    """Return a short `repr` of bounded length without unprintable characters."""
    try:
        text = _short.repr(value)
    except ValueError:  # Python does not convert integers of more than 4,300 digits
        return f"<{type(value).__name__} with an integer of thousands of digits>"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def listed(values: Iterable[Any]) -> str:
    """Return the values joined by commas, truncated to the length of a message."""
    text = ", ".join(map(str, values))
    return text if len(text) <= 600 else f"{text[:600]}, ..."


@contextmanager
def error_context(where: str) -> Iterator[None]:
    """Prefix the message of an InputError raised in the block with `where`."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where} {error}") from error


def finite_number(value: Any, name: str) -> float:
    """Return a finite number, else raise InputError; the caller adds the context, see `error_context`."""
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
    """Parse a finite number, else raise InputError, starting with `where`."""
    try:
        number = math.nan if "_" in text else float(text)  # Python reads 1_0 as 10
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} is {shown(text)}, expected a finite number")
    return number


def number_of_text(value: Any) -> Any:
    """Return the number that a text such as "12" or "3.5" consists of; other values are returned as they are."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    text = value.strip()
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def is_set(value: Any, name: str) -> bool:
    """Return a flag of any label format, as number, boolean or text; a missing flag is not set.

    1, true and yes are set, 0, false, no, Unspecified and empty text are not.

    Raises:
        InputError: as `finite_number` does for all others.
    """
    is_plain = isinstance(value, str) or (isinstance(value, (int, float)) and value in (0, 1))
    text = "" if value is None else str(value).strip().lower() if is_plain else None
    if text in _SET:
        return True
    if text in _NOT_SET:
        return False
    raise InputError(f"has {name} {shown(value)}, expected 1, true or yes, or 0, false, no or Unspecified")


def whole_number(value: Any, name: str, *, least: int = 0) -> int:
    """Return an integer, also from a float such as 1.0.

    Raises:
        InputError: as `finite_number` does.
    """
    if type(value) is not int and finite_number(value, name) % 1:
        raise InputError(f"has {name} {shown(value)}, expected an integer")
    integer = int(value)
    if not least <= integer <= LARGEST_ID:
        raise InputError(f"has {name} {shown(integer)}, expected {least} to {LARGEST_ID}")
    return integer


def storable_text(value: Any, name: str) -> str:
    r"""Return text that UTF-8 and C strings can represent. Raises InputError as `finite_number` does.

    A lone surrogate ("\ud800" in JSON, undecodable bytes in a file name) cannot be encoded.
    """
    if not isinstance(value, str):
        raise InputError(f"has {name} {shown(value)}, expected text")
    if _NOT_STORABLE.search(value):
        raise InputError(f"has {name} {shown(value)}, expected text without NUL that UTF-8 can hold")
    return value


def allowing_fraction(bad: int, total: int) -> str:
    """Return the smallest round value of --max_bad_fraction that allows this."""
    if not bad:
        return "0"
    return f"{min(bad / total + 0.0005, 1.0):.3f}" if bad < total else "1"
