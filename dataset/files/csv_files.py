"""Read untrusted CSV files one row at a time: the largest has gigabytes."""

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from dataset.files.bounded_files import LARGEST_FILE_BYTES, NOT_UTF_8, decoded_text, open_regular_file
from program_support.errors import InputError

_LONGEST_LINE_BYTES = 1 << 16


def csv_rows(
    path: str, *, separator: str = ",", taken: Callable[[bytes], None] = lambda line: None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each non-empty row of a CSV file; every line is passed to `taken`.

    Raises:
        InputError: with file and line, if the file cannot be read or is not CSV.
    """
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        while line := file.readline(_LONGEST_LINE_BYTES):
            number += 1
            if len(line) == _LONGEST_LINE_BYTES:
                raise InputError(
                    f"{path}: line {number} has more than {_LONGEST_LINE_BYTES} bytes: not a CSV file of boxes"
                )
            taken(line)
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield "" if number == 1 and is_separator_line(text) else text

    try:
        with _open_as_utf_8(path) as file:
            for row in csv.reader(lines(), strict=True, delimiter=separator):
                if row:
                    yield number, row
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line {number} {NOT_UTF_8}") from error
    except csv.Error as error:
        raise InputError(f"{path}: line {number} is not a CSV row ({error})") from error


def is_separator_line(line: str) -> bool:
    """Return whether this is Excel's first line, which says how the fields are separated."""
    return re.fullmatch(r"\s*\"?sep=.\"?\s*", line, re.IGNORECASE) is not None


def _open_as_utf_8(path: str) -> BinaryIO:
    """Open a file; one with the byte order mark of UTF-16 or UTF-32 is converted in memory."""
    file = open_regular_file(path)
    start = file.read(4)
    file.seek(0)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or start == codecs.BOM_UTF32_BE:
        with file:
            return io.BytesIO(decoded_text(file.read(LARGEST_FILE_BYTES)).encode())
    return file
