"""Restricted unpickling of tensors: a list of allowed operations and names.

Objects of other names, such as the settings of a training beside its weights, become placeholders, which do nothing.
"""

import io
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from dataset.files.untrusted_values import shown
from efficientdet.plugins.torch_weights.torch_tensors import NAMES, ONLY_TENSORS, BoundedFile, Dictionary, Placeholder
from program_support.errors import InputError

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
