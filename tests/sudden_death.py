"""A simulated process that is killed while it writes: from one call on, nothing reaches the disk."""

import contextlib
import os
from pathlib import Path

import pytest
import tensorflow as tf

_CALLS = (
    (os, "replace"),
    (os, "rename"),
    (os, "unlink"),
    (os, "link"),
    (os, "fsync"),
    (os, "mkdir"),
    (os, "rmdir"),
    (tf.raw_ops, "SaveV2"),
    (tf.raw_ops, "MergeV2Checkpoints"),
    (Path, "write_text"),
)


class Killed(BaseException):
    """No `except OSError` and no clean-up outlives a SIGKILL."""


@contextlib.contextmanager
def killed_at(number):
    """The call `number` (1 the first) to change the disk does half of its work or none, the later ones nothing.

    Gives a list that holds the names of the calls.
    """
    calls = []

    def mortal(name, call):
        def call_or_die(*arguments, **options):
            calls.append(name)
            if len(calls) < number:
                return call(*arguments, **options)
            if len(calls) == number:
                _half_of(name, arguments, options)
            raise Killed

        return call_or_die

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in _CALLS:
            patch.setattr(owner, name, mortal(name, getattr(owner, name)))
        with contextlib.suppress(Killed):
            yield calls


def _half_of(name, arguments, options):
    if name == "write_text":
        with open(arguments[0], "w", encoding="utf-8") as stream:
            stream.write(arguments[1][: len(arguments[1]) // 2])
    elif name == "SaveV2":
        with open(f"{options['prefix']}.data-00000-of-00001.tempstate4711", "wb") as stream:
            stream.write(b"half")


def each_moment(write):
    """Run `write(number)`, killed at its first, second, .. call, until it completes; return number and calls."""
    for number in range(1, 1000):
        with killed_at(number) as calls:
            write(number)
        yield number, calls
        if len(calls) < number:
            return
    raise AssertionError("does not end")
