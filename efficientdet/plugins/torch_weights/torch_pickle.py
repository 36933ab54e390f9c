"""Restricted unpickling of tensors: a list of allowed operations and names.

Objects of other names, such as the settings of a training beside its weights, become placeholders, which do nothing.
"""

import io
import math
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

import numpy as np

from dataset.files.untrusted_values import shown
from efficientdet.plugins.torch_weights.safetensors_files import BFLOAT16, numbers_of
from program_support.errors import InputError

ONLY_TENSORS = (
    "expected only named tensors of numbers, as torch.save(model.state_dict(), FILE) or "
    "safetensors.torch.save_file writes them"
)
_NUMBERS = {
    "Float": "f4",
    "Double": "f8",
    "Half": "f2",
    "BFloat16": BFLOAT16,
    "Long": "i8",
    "Int": "i4",
    "Short": "i2",
    "Char": "i1",
    "Byte": "u1",
    "Bool": "bool",
}  # torch.FloatStorage etc. -> NumPy
_MOST_DIMENSIONS = 16
_LARGEST_NUMBER = 2**48  # limit of a dimension, stride or offset: integers of a pickle may have millions of digits
# Elements of a view that repeats numbers of its storage (`expand`) are limited, as such a view is copied to memory.
_MOST_REPEATED = 2**20


class BoundedFile:
    """An untrusted regular file opened for reading; reads are limited to its size. `size`: bytes when it was opened."""

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


@dataclass(frozen=True)
class StorageKind:
    """The data type of a storage, one of `_NUMBERS`."""

    number: str

    @property
    def width(self) -> int:
        """Bytes per number."""
        return 2 if self.number == BFLOAT16 else np.dtype(self.number).itemsize


@dataclass
class Storage:
    """A flat array of `count` numbers. `read` returns their bytes; None until their place in the file is known."""

    kind: StorageKind
    count: int
    read: Callable[[], bytes] | None = None
    big_endian: bool = False
    _numbers: np.ndarray | None = field(default=None, repr=False)

    def numbers(self) -> np.ndarray:
        """Return the numbers, [count], bfloat16 as float32."""
        if self._numbers is None:
            assert self.read is not None  # every reader of a layout sets it before it returns tensors
            self._numbers = numbers_of(self.read(), self.kind.number, big_endian=self.big_endian)
        return self._numbers

    def end_in(self, file: BoundedFile, start: int) -> int:
        """Return the end of the storage whose count and numbers begin at `start`; the numbers are read on demand.

        Raises:
            InputError: the count differs or the file is too short.
        """
        [count] = struct.unpack("<q", file.content(start, 8))
        length = count * self.kind.width
        if count != self.count or start + 8 + length > file.size:
            raise InputError(
                f"has a storage of {count} numbers at byte {start}; expected {self.count}, within {file.size} bytes"
            )
        self.read = lambda: file.content(start + 8, length)
        return start + 8 + length


class Tensor:
    """A view of a storage; old versions of PyTorch set the view later, by `__setstate__`."""

    def __init__(self) -> None:
        self.view: tuple[Storage, int, tuple[int, ...], tuple[int, ...]] | None = None

    def __setstate__(self, state: Any) -> None:
        """Set the state of PyTorch before 0.4: a tensor (4 entries), a parameter (3) or one without its tensor (5)."""
        if type(state) is tuple and len(state) == 4:
            self.view = tensor(*state).view
        elif type(state) is tuple and len(state) == 5 and isinstance(state[0], Tensor):
            self.view = state[0].view
        elif type(state) is not tuple or len(state) != 3:
            raise InputError(f"gives a tensor attributes; {ONLY_TENSORS}")

    def array(self) -> np.ndarray:
        """Return the numbers, read-only; arrays of a storage share its memory."""
        if self.view is None:
            raise InputError("has a tensor without numbers")
        storage, offset, shape, strides = self.view
        numbers = storage.numbers()
        if 0 in shape:
            return np.zeros(shape, numbers.dtype)
        steps = [stride * numbers.itemsize if side > 1 else 0 for side, stride in zip(shape, strides, strict=True)]
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)


def tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    requires_grad: Any = None,
    hooks: Any = None,
    metadata: Any = None,
) -> Tensor:
    """Return a tensor as torch._utils._rebuild_tensor(_v2) does.

    metadata: bits such as a pending negation.

    Raises:
        InputError: for a view outside the storage.
    """
    if not isinstance(storage, Storage) or type(shape) is not tuple or type(strides) is not tuple:
        raise InputError(
            f"has a tensor of a {type(storage).__name__}, {type(shape).__name__} and {type(strides).__name__}; "
            "expected a storage and two tuples"
        )
    place = f"has a tensor of shape {shown(shape)}, strides {shown(strides)} at {shown(offset)}"
    if not all(type(number) is int and 0 <= number <= _LARGEST_NUMBER for number in (offset, *shape, *strides)):
        raise InputError(f"{place}; expected integers from 0 to {_LARGEST_NUMBER}")
    if len(shape) != len(strides) or len(shape) > _MOST_DIMENSIONS:
        raise InputError(f"{place}; expected as many strides as dimensions, at most {_MOST_DIMENSIONS}")
    if math.prod(max(side, 1) for side in shape) > max(storage.count, _MOST_REPEATED):
        raise InputError(f"{place}; expected at most the {storage.count} numbers of its storage")
    last = offset + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.count:
        raise InputError(f"{place}; expected a view of its storage of {storage.count} numbers")
    if metadata:
        raise InputError(f"{place} with metadata {shown(metadata)}; {ONLY_TENSORS}")
    made = Tensor()
    made.view = storage, offset, shape, strides
    return made


def _parameter(data: Any = None, requires_grad: Any = None, hooks: Any = None) -> Tensor:
    """Return the tensor of torch.nn.Parameter and torch._utils._rebuild_parameter."""
    if data is not None and not isinstance(data, Tensor):
        raise InputError(f"has a parameter that is a {type(data).__name__}; expected a tensor")
    return Tensor() if data is None else data


class Dictionary(dict):
    """A dictionary of a pickle. Raises InputError for a key that is neither text nor a number."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        # Nested tuples and integers of millions of digits are not safe to hash.
        if type(key) not in (str, int, bool, float, type(None)) or (type(key) is int and key.bit_length() > 64):
            raise InputError(f"its pickle has a dictionary with a key that is a {type(key).__name__}; {ONLY_TENSORS}")
        super().__setitem__(key, value)

    def __setstate__(self, state: Any) -> None:
        """Ignore attributes such as `_metadata`, the versions of the layers."""


class Placeholder:
    """Stands for a class that is not read, and for its objects: ignores calls, items and states."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any) -> "Placeholder":
        """Return the placeholder of an object of this class."""
        return self

    def __setstate__(self, state: Any) -> None:
        """Ignore a state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an item of a dictionary."""

    def append(self, item: Any) -> None:
        """Ignore an item of a list."""

    def extend(self, items: Any) -> None:
        """Ignore items of a list."""

    def __repr__(self) -> str:
        return shown(self._name)[1:-1]


def _ordered_dictionary(pairs: Any = None) -> Dictionary:
    """Return a collections.OrderedDict. A list of pairs (Python 2) is emptied, so that it is not copied many times."""
    made = Dictionary()
    if pairs is None:
        return made
    if type(pairs) is not list or not all(type(pair) in (list, tuple) and len(pair) == 2 for pair in pairs):
        raise InputError("has a dictionary that is not a list of pairs")
    for key, value in pairs:
        made[key] = value
    pairs.clear()
    return made


class TensorKind(StorageKind):
    """torch.FloatTensor etc., called without arguments; `__setstate__` sets the view later."""

    def __call__(self) -> Tensor:
        """Return a tensor without a view."""
        return Tensor()


NAMES: dict[str, Any] = {
    "collections.OrderedDict": _ordered_dictionary,
    "torch._utils._rebuild_tensor": tensor,
    "torch._utils._rebuild_tensor_v2": tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    **{f"torch.{name}Storage": StorageKind(number) for name, number in _NUMBERS.items()},
    **{f"torch.cuda.{name}Storage": StorageKind(number) for name, number in _NUMBERS.items()},
    **{f"torch.{name}Tensor": TensorKind(number) for name, number in _NUMBERS.items()},
    **{f"torch.cuda.{name}Tensor": TensorKind(number) for name, number in _NUMBERS.items()},
}


LARGEST_PICKLE = 8 * 2**20  # bytes; a ResNet-152 has 60,000: the numbers of the tensors are stored elsewhere
LARGEST_SMALL_PICKLE = 4096  # bytes; a number, a machine's properties, a storage or a tensor in the older layouts
_MOST_OPERATIONS = 1_000_000  # a ResNet-152 has 50,000; an operation of one byte may take 100 bytes of memory
# What a damaged pickle raises: an empty stack, a list where a number is expected, text that is not UTF-8, ...
_DAMAGE = (
    pickle.UnpicklingError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OverflowError,
    RecursionError,
    MemoryError,
    struct.error,
)
_ALLOWED = {
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1",
    "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE",
    "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE",
    "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "PUT", "BINPUT",
    "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
    "PERSID", "BINPERSID",
}  # fmt: skip
# Names of these modules are refused: a file that refers to them is meant to run something
_MODULES_OF_PROGRAMS = {
    "__builtin__", "builtins", "ctypes", "importlib", "nt", "os", "posix", "pty", "runpy", "shutil", "socket",
    "subprocess", "sys",
}  # fmt: skip
_INERT_BUILTINS = {
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "long", "object", "range",
    "set", "slice", "str", "tuple", "unicode", "xrange",
}  # fmt: skip
_OPERATION_NAMES = {ord(operation.code): operation.name for operation in pickletools.opcodes}


def read_pickle(content: bytes, persistent: Callable[[Any], Any] | None = None) -> tuple[Any, int]:
    """Return the value of the pickle that `content` begins with, and the pickle's length.

    `persistent` returns the object of a persistent id.

    Raises:
        InputError: without the file's name.
    """
    stream = io.BytesIO(content)
    try:
        return _TensorUnpickler(stream, persistent).load(), stream.tell()
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"its pickle is truncated or damaged ({type(error).__name__}: {shown(str(error))})") from error


def read_pickle_at(
    file: BoundedFile, start: int, most: int, persistent: Callable[[Any], Any] | None = None
) -> tuple[Any, int]:
    """Return the value of the pickle at `start`, of at most `most` bytes, and its end.

    Raises:
        InputError: the data is damaged or not plain.
    """
    value, length = read_pickle(file.content(start, max(min(most, file.size - start), 0)), persistent)
    return value, start + length


class _TensorUnpickler(pickle._Unpickler):
    """The standard library's unpickler in Python; the one in C (`pickle.Unpickler`) is unsafe for untrusted files.

    The unpickler in C allocates a memo of any size that a file states, and has no hook for the keys of dictionaries:
    hashing nested tuples overflows the C stack, or takes time exponential in the length of the file.
    """

    # Members of `pickle._Unpickler` that typeshed does not declare.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    load_reduce: ClassVar[Callable[["_TensorUnpickler"], None]]

    def __init__(self, stream: io.BytesIO, persistent: Callable[[Any], Any] | None) -> None:
        super().__init__(stream, encoding="latin-1")
        self._persistent = persistent
        self.dispatch = _Operations()  # type: ignore[misc, assignment]  # a class variable in typeshed

    def find_class(self, module: str, name: str) -> Any:
        """Return the object of an allowed name, a placeholder for any other; nothing is imported."""
        if f"{module}.{name}" in NAMES:
            return NAMES[f"{module}.{name}"]
        placeholder = Placeholder(f"{module}.{name}")
        if module.partition(".")[0] in _MODULES_OF_PROGRAMS and name not in _INERT_BUILTINS:
            raise InputError(f"refers to {placeholder!r}; {ONLY_TENSORS}")
        return placeholder

    def persistent_load(self, identity: Any) -> Any:
        """Return the storage or tensor of a persistent id."""
        if self._persistent is None:
            raise InputError(f"its pickle has an unexpected persistent id; {ONLY_TENSORS}")
        return self._persistent(identity)

    def _empty_dict(self) -> None:
        self.append(Dictionary())

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append(Dictionary())
        for key, value in zip(items[::2], items[1::2], strict=True):
            self.stack[-1][key] = value

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if not hasattr(target, "__setstate__"):  # pickle would set attributes, even of a function in NAMES
            raise InputError(f"its pickle gives a state to a {type(target).__name__}; {ONLY_TENSORS}")
        target.__setstate__(state)


_METHODS: dict[int, Callable[[Any], None]] = {
    code: method for code, method in pickle._Unpickler.dispatch.items() if _OPERATION_NAMES[code] in _ALLOWED
} | {
    pickle.EMPTY_DICT[0]: _TensorUnpickler._empty_dict,
    pickle.DICT[0]: _TensorUnpickler._dict,
    pickle.BUILD[0]: _TensorUnpickler._build,
    pickle.NEWOBJ[0]: _TensorUnpickler.load_reduce,
}


class _Operations:
    """The methods of a pickle's operations, by code. Refuses other operations, and too many of them."""

    def __init__(self) -> None:
        self._left = _MOST_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self._left -= 1
        if self._left < 0:
            raise InputError(f"its pickle has more than {_MOST_OPERATIONS} operations; {ONLY_TENSORS}")
        if code not in _METHODS:
            raise InputError(f"its pickle has the operation {_OPERATION_NAMES.get(code, code)}; {ONLY_TENSORS}")
        return _METHODS[code]
