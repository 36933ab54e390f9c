"""An untrusted file whose reads are limited to its size."""

import os
from typing import BinaryIO

from program_support.errors import InputError


class BoundedFile:
    """A regular file opened for reading. `size`: bytes when it was opened."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.size = stream, os.fstat(stream.fileno()).st_size

    def content(self, start: int, length: int) -> bytes:
        """Return bytes of the file.

        Raises:
            InputError: without the file's name, if they are not there.
        """
        if not 0 <= start <= start + length <= self.size:
            raise InputError(f"is cut short or damaged: {self.size} bytes; expected {length} bytes at offset {start}")
        self.stream.seek(start)
        data = self.stream.read(length)
        if len(data) < length:
            raise InputError(f"has become shorter than {self.size} bytes while it was read")
        return data
