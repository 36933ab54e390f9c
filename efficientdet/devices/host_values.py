"""The exchange of host values between processes under JAX, through the key-value store of JAX's coordination service.

No program on the devices takes part: its collective operations could meet those of a training step in flight.
"""

import hashlib
import pickle
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from efficientdet.devices.peers import Peers
from program_support.errors import InputError

_SECONDS_BETWEEN_CHECKS = 1.0  # checks whether the processes that are waited for have ended
_PART = 64 << 20  # bytes of a message with weights, which process 0 keeps until all have read it


class HostValues:
    """One process's side of the exchange; all processes call its methods in the same order."""

    def __init__(self, client: Any, peers: Peers):
        """client: of JAX's coordination service."""
        self._client, self._peers, self._rounds, self._last = client, peers, count(), ""

    def gather(self, value, *, seconds: float) -> list:
        """Return the picklable values of all processes, in order of number; wait at most `seconds`, 0: forever."""
        return [pickle.loads(each) for each in self._exchange(pickle.dumps(value), seconds=seconds)]

    def broadcast(self, arrays: Sequence[np.ndarray], *, seconds: float) -> list[np.ndarray]:
        """Return the arrays of process 0; the others have arrays of the same shapes and types.

        Usually all are equal, drawn from the same seed or read from the same file, and nothing but a hash is sent.
        """
        content = b"".join(array.tobytes() for array in arrays)
        if len({*self.gather(hashlib.sha256(content).digest(), seconds=seconds)}) == 1:
            return list(arrays)
        is_first = self._peers.number == 0
        parts = [content[start : start + _PART] for start in range(0, len(content), _PART)]
        content = b"".join(self._exchange(part if is_first else b"", seconds=seconds)[0] for part in parts)
        ends = np.cumsum([array.nbytes for array in arrays])[:-1]
        return [
            part.view(array.dtype).reshape(array.shape)
            for array, part in zip(arrays, np.split(np.frombuffer(content, np.uint8), ends), strict=True)
        ]

    def _exchange(self, message: bytes, *, seconds: float) -> list[bytes]:
        folder, last = f"host_values/{next(self._rounds)}", self._last
        self._last = f"{folder}/{self._peers.number}"
        self._client.key_value_set_bytes(self._last, message)
        ends = time.monotonic() + seconds if seconds else float("inf")
        messages = [
            message if number == self._peers.number else self._received(f"{folder}/{number}", number, ends=ends)
            for number in range(self._peers.count)
        ]
        if last:  # all have come to this round, and so have read those before
            self._client.key_value_delete(last)
        return messages

    def _received(self, key: str, number: int, *, ends: float) -> bytes:
        while True:
            self._peers.raise_if_ended()
            try:
                return self._client.blocking_key_value_get_bytes(key, round(1000 * _SECONDS_BETWEEN_CHECKS))
            except RuntimeError as error:  # JaxRuntimeError
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if time.monotonic() >= ends:
                raise InputError(
                    f"process {self._peers.number} of {self._peers.count} waited too long for process {number}, on "
                    f"{self._peers.names[number]}, which hangs; EFFICIENTDET_STALL_SECONDS sets how long; the same "
                    "command resumes from the last checkpoint"
                )
