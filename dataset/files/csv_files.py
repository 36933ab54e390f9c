"""Csv files of others, a row at a time: the largest is of gigabytes."""

import csv
from collections.abc import Callable, Iterator

from dataset.files.bounded_files import open_regular_file
from program_support.errors import InputError

_LONGEST_LINE_BYTES = 1 << 16


def csv_rows(
    path: str, *, separator: str = ",", taken: Callable[[bytes], None] = lambda line: None
) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each row that is not empty of a csv file in UTF-8, whose lines are handed to `taken`.

    Raises InputError, with file and line, where the file cannot be read or is no csv.
    """
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        while line := file.readline(_LONGEST_LINE_BYTES):
            number += 1
            if len(line) == _LONGEST_LINE_BYTES:
                raise InputError(f"{path}: line {number} has more than {_LONGEST_LINE_BYTES} bytes: not a CSV file of boxes")
            taken(line)
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")

    try:
        with open_regular_file(path) as file:
            for row in csv.reader(lines(), strict=True, delimiter=separator):
                if row:
                    yield number, row
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: line {number} is not UTF-8") from error
    except csv.Error as error:
        raise InputError(f"{path}: line {number} is not a CSV row ({error})") from error
