"""Functions that tests run on the nodes of a Ray cluster, which import them from here."""

import os
import time
from pathlib import Path

from program_support.errors import InputError

FATAL = b"this content ends the process that decodes it"


def square(numbers):
    return numbers[0] * numbers[0]


def slow_square(numbers):
    time.sleep(0.3)
    return square(numbers)


def die_once(paths):
    """End the process at the first call, as a lack of memory or a lost machine does."""
    [path] = paths
    if not Path(path).exists():
        Path(path).touch()
        os._exit(9)
    return Path(path).name


def die_with_threes(numbers):
    if any(number % 3 == 0 for number in numbers):
        os._exit(9)


def refuse(numbers):
    [number] = numbers
    if number == 3:
        raise InputError(f"{number}: expected another number")
    return number


def fill_the_disk(numbers):
    from ray.exceptions import OutOfDiskError

    raise OutOfDiskError("Local disk is full")


def many_bytes(numbers):
    return bytes(numbers) * 20_000_000


def die_of_fatal_images():
    """Hook of a worker process: a decoder that a certain content kills."""
    from dataset.conversion import convert

    check = convert.check_image

    def fatal(content, **settings):
        if content == FATAL:
            os._exit(11)
        return check(content, **settings)

    convert.check_image = fatal
