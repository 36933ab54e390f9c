"""What a pickle of torch says of its tensors: which numbers of which storage they are. The storages are read when needed."""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataset.files.untrusted_values import shown
from efficientdet.weights.bounded_file import BoundedFile
from program_support.errors import InputError

ONLY_TENSORS = ("only tensors of numbers by name are read, as torch.save(model.state_dict(), FILE) or "
                "safetensors.torch.save_file writes them")
BFLOAT16 = "bfloat16"
_NUMBERS = {"Float": "f4", "Double": "f8", "Half": "f2", "BFloat16": BFLOAT16, "Long": "i8", "Int": "i4", "Short": "i2",
            "Char": "i1", "Byte": "u1", "Bool": "bool"}  # torch.FloatStorage and so on -> as numpy calls it
_MOST_DIMENSIONS = 16
_LARGEST_NUMBER = 2**48  # of a side, a stride or an offset: integers of a pickle may have millions of digits
# A view may have more numbers than its storage, each several times (`expand`); as many as no one makes a large array of.
_MOST_REPEATED = 2**20


@dataclass(frozen=True)
class StorageKind:
    """The type of a storage's numbers, one of `_NUMBERS`; where they are tensors' types, a call makes a tensor to be built."""

    number: str

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return 2 if self.number == BFLOAT16 else np.dtype(self.number).itemsize


@dataclass
class Storage:
    """Numbers in a row. `read` gives their bytes, `count` times the width, as soon as it is known where they lie."""

    kind: StorageKind
    count: int
    read: Callable[[], bytes] | None = None
    big_endian: bool = False
    _numbers: np.ndarray | None = field(default=None, repr=False)

    def numbers(self) -> np.ndarray:
        """[count], bfloat16 as float32."""
        if self._numbers is None:
            self._numbers = numbers_of(self.read(), self.kind.number, big_endian=self.big_endian)
        return self._numbers

    def end_in(self, file: BoundedFile, start: int) -> int:
        """Return where the storage ends whose count and numbers begin at `start`; its numbers are read when they are asked for.

        Raises InputError where the count is another or the file too short.
        """
        [count] = struct.unpack("<q", file.content(start, 8))
        length = count * self.kind.width
        if count != self.count or start + 8 + length > file.size:
            raise InputError(f"has a storage of {count} numbers at byte {start}; expected {self.count}, within {file.size} bytes")
        self.read = lambda: file.content(start + 8, length)
        return start + 8 + length


def numbers_of(content: bytes, number: str, *, big_endian: bool = False) -> np.ndarray:
    """[n] numbers in this machine's byte order; bfloat16, which numpy lacks, as float32, and of a truth value only whether it
    is 0."""
    order = ">" if big_endian else "<"
    if number == BFLOAT16:
        return (np.frombuffer(content, f"{order}u2").astype(np.uint32) << 16).view(np.float32)
    if number == "bool":
        return np.frombuffer(content, np.uint8) != 0
    stored = np.frombuffer(content, np.dtype(number).newbyteorder(order))
    return stored.astype(stored.dtype.newbyteorder("="), copy=False)


class Tensor:
    """A view of a storage, or one that is reported later what it is, as old versions of torch wrote it."""

    def __init__(self) -> None:
        self.view: tuple[Storage, int, tuple[int, ...], tuple[int, ...]] | None = None

    def __setstate__(self, state: Any) -> None:
        """The state that versions before 0.4 gave to a tensor (4 entries), a parameter (3) and a parameter without its tensor
        (5)."""
        if type(state) is tuple and len(state) == 4:
            self.view = tensor(*state).view
        elif type(state) is tuple and len(state) == 5 and isinstance(state[0], Tensor):
            self.view = state[0].view
        elif type(state) is not tuple or len(state) != 3:
            raise InputError(f"gives a tensor attributes; {ONLY_TENSORS}")

    def array(self) -> np.ndarray:
        """The numbers, not writeable; arrays of one storage share its memory."""
        if self.view is None:
            raise InputError("has a tensor without numbers")
        storage, offset, shape, strides = self.view
        numbers = storage.numbers()
        if 0 in shape:
            return np.zeros(shape, numbers.dtype)
        steps = [stride * numbers.itemsize if side > 1 else 0 for side, stride in zip(shape, strides, strict=True)]
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)


def tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, requires_grad: Any = None, hooks: Any = None, metadata: Any = None
) -> Tensor:
    """torch._utils._rebuild_tensor and _rebuild_tensor_v2. Raises InputError for what is not inside the storage.

    metadata: bits such as a sign that is still to be changed.
    """
    if not isinstance(storage, Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise InputError(f"has a tensor of a {type(storage).__name__}, {type(shape).__name__} and {type(strides).__name__}; "
                         "expected a storage and two tuples")
    told = f"has a tensor of shape {shown(shape)}, strides {shown(strides)} at {shown(offset)}"
    if not all(type(number) is int and 0 <= number <= _LARGEST_NUMBER for number in (offset, *shape, *strides)):
        raise InputError(f"{told}; expected whole numbers of at least 0, at most {_LARGEST_NUMBER}")
    if len(shape) != len(strides) or len(shape) > _MOST_DIMENSIONS:
        raise InputError(f"{told}; expected as many strides as sides, {_MOST_DIMENSIONS} at most")
    if math.prod(max(side, 1) for side in shape) > max(storage.count, _MOST_REPEATED):
        raise InputError(f"{told}, more numbers than its storage has, which are {storage.count}")
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.count:
        raise InputError(f"{told}, beyond its storage, which has {storage.count} numbers")
    if metadata:
        raise InputError(f"{told} with metadata {shown(metadata)}; {ONLY_TENSORS}")
    made = Tensor()
    made.view = storage, offset, shape, strides
    return made


def _parameter(data: Any = None, requires_grad: Any = None, hooks: Any = None) -> Tensor:
    """torch.nn.Parameter, and torch._utils._rebuild_parameter: a tensor that learns."""
    if data is not None and not isinstance(data, Tensor):
        raise InputError(f"has a parameter that is a {type(data).__name__}; expected a tensor")
    return Tensor() if data is None else data


class Dictionary(dict):
    """A dictionary as a pickle fills it. Raises InputError for a key that is neither text nor a number."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        # Nested tuples and integers of millions of digits are not safe to hash
        if type(key) not in (str, int, bool, float, type(None)) or (type(key) is int and key.bit_length() > 64):
            raise InputError(f"its pickle has a dictionary with a key that is a {type(key).__name__}; {ONLY_TENSORS}")
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        """Ignore the attributes, such as `_metadata`: the versions of the layers."""


def _ordered_dictionary(pairs: Any = None) -> Dictionary:
    """collections.OrderedDict. A list of pairs, which Python 2 wrote, is emptied: no pickle can have it copied many times."""
    made = Dictionary()
    if pairs is None:
        return made
    if type(pairs) is not list or not all(type(pair) in (list, tuple) and len(pair) == 2 for pair in pairs):
        raise InputError("has a dictionary that is not made of pairs")
    for key, value in pairs:
        made[key] = value
    pairs.clear()
    return made


class TensorKind(StorageKind):
    """torch.FloatTensor and so on: called without anything, and told by its state what it is."""

    def __call__(self) -> Tensor:
        """A tensor to be built."""
        return Tensor()


NAMES: dict[str, Any] = {
    "collections.OrderedDict": _ordered_dictionary,
    "torch._utils._rebuild_tensor": tensor,
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    **{f"torch.{place}{name}Storage": StorageKind(number) for name, number in _NUMBERS.items() for place in ("", "cuda.")},
    **{f"torch.{place}{name}Tensor": TensorKind(number) for name, number in _NUMBERS.items() for place in ("", "cuda.")},
}
