"""A file of a user else's of which no more is read, and no more memory taken, than it has."""

import os
from typing import BinaryIO

from program_support.errors import InputError


class BoundedFile:
    """A regular file that is open for reading. `size`: bytes when it was opened."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.size = stream, os.fstat(stream.fileno()).st_size

    def content(self, start: int, length: int) -> bytes:
        """Raises InputError, without the name of the file, where that many bytes are not there."""
        if not 0 <= start <= start + length <= self.size:
            raise InputError(f"is cut short or damaged: it is of {self.size} bytes; {length} are requested from byte {start} on")
        self.stream.seek(start)
        found = self.stream.read(length)
        if len(found) < length:
            raise InputError(f"has become shorter than {self.size} bytes while it is read")
        return found
