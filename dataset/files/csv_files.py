"""Read untrusted CSV files one row at a time: the largest has gigabytes."""

import csv
from collections.abc import Callable, Iterator

from dataset.files.bounded_files import open_regular_file
from program_support.errors import InputError

_LONGEST_LINE_BYTES = 1 << 16


def csv_rows(
    path: str, *, separator: str = ",", taken: Callable[[bytes], None] = lambda line: None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each non-empty row of a UTF-8 CSV file; every line is passed to `taken`.

    Raises InputError, with file and line, if the file cannot be read or is not CSV.
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
