"""A pickle of tensors, read without `pickle`: what it asks for by name is looked up in a given table, or refused.

The operations of a pickle are taken apart by `pickletools`; the few that dictionaries of tensors are written with are
carried out here. None of them can import, call or build anything that is not in the table.
"""

import io
import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from dataset.files.untrusted_values import shown
from program_support.errors import InputError

LARGEST_PICKLE = 8 * 2**20  # bytes; that of a ResNet-152 has 60,000: the numbers of the tensors lie elsewhere
_MOST_OPERATIONS = 1_000_000  # that of a ResNet-152 has 50,000
_HIGHEST_PROTOCOL = 5

ONLY_TENSORS = ("only tensors of numbers by name are read, as torch.save(model.state_dict(), FILE) or "
                "safetensors.torch.save_file writes them")

_GIVES_ITS_ARGUMENT = {"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE",
                       "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LENGTHS = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
# What a pickle can be damaged into: an empty stack, a list where a number should be, text that is no UTF-8, ...
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError, MemoryError)


def read_pickle(
    content: bytes, start: int = 0, *, names: Mapping[str, Any], persistent: Callable[[Any], Any] | None = None
) -> tuple[Any, int]:
    """The value of the pickle that begins at `start`, and where it ends.

    names: what "module.name" stands for in it; callables are called with the arguments that the pickle has.
    persistent: gives the object of a persistent id. An object that the pickle gives a state to must have a method `build`;
    a dictionary's attributes are left out. Raises InputError, without the name of the file.
    """
    stream = io.BytesIO(content)
    stream.seek(start)
    machine = _Machine(names, persistent)
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(stream)):
            if number > _MOST_OPERATIONS:
                raise InputError(f"its pickle has more than {_MOST_OPERATIONS} operations; {ONLY_TENSORS}")
            machine.carry_out(operation.name, argument)
        return machine.stack.pop(), stream.tell()
    except InputError:
        raise
    except _DAMAGE as error:
        raise InputError(f"its pickle is cut short or damaged ({type(error).__name__}: {shown(str(error))})") from error


def set_item(target: dict, key: Any, value: Any) -> None:
    """An entry of a dictionary. Raises InputError for a key that is neither text nor a number."""
    if type(target) is not dict or type(key) not in (str, int, bool, float, type(None)):  # to hash nested tuples is not safe
        raise InputError(f"its pickle has a {type(target).__name__} with a key that is a {type(key).__name__}; {ONLY_TENSORS}")
    target[key] = value


class _Machine:
    """The stack, its marks and the memo of one pickle (PEP 307, PEP 3154; `pickletools` documents every operation)."""

    def __init__(self, names: Mapping[str, Any], persistent: Callable[[Any], Any] | None) -> None:
        self.stack: list[Any] = []
        self._below_marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._names, self._persistent = names, persistent

    def carry_out(self, operation: str, argument: Any) -> None:
        """One operation. Raises InputError for one that no dictionary of tensors is written with."""
        if operation in _GIVES_ITS_ARGUMENT:
            self.stack.append(argument)
        elif operation in _CONSTANTS:
            self.stack.append(_CONSTANTS[operation])
        elif operation in _LENGTHS:
            length = _LENGTHS[operation]
            if len(self.stack) < length:
                raise IndexError("an empty stack")
            self.stack[-length:] = [tuple(self.stack[-length:])]
        elif operation in _OPERATIONS:
            _OPERATIONS[operation](self, argument)
        else:
            raise InputError(f"its pickle has the operation {operation}; {ONLY_TENSORS}")

    def _proto(self, version: int) -> None:
        if version > _HIGHEST_PROTOCOL:
            raise InputError(f"its pickle is of protocol {version}; 0 to {_HIGHEST_PROTOCOL} are read")

    def _nothing(self, argument: Any) -> None:
        """A frame or the end: both are the reader's affair."""

    def _mark(self, argument: None) -> None:
        self._below_marks.append(self.stack)
        self.stack = []

    def _since_mark(self) -> list[Any]:
        """What is above the mark; the stack is then the one below it."""
        found, self.stack = self.stack, self._below_marks.pop()
        return found

    def _pop(self, argument: None) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self._since_mark()

    def _pop_mark(self, argument: None) -> None:
        self._since_mark()

    def _tuple(self, argument: None) -> None:
        values = tuple(self._since_mark())
        self.stack.append(values)

    def _list(self, argument: None) -> None:
        values = self._since_mark()
        self.stack.append(values)

    def _empty_list(self, argument: None) -> None:
        self.stack.append([])

    def _append(self, argument: None) -> None:
        value = self.stack.pop()
        self._extend([value])

    def _appends(self, argument: None) -> None:
        self._extend(self._since_mark())

    def _extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError(f"appends to a {type(self.stack[-1]).__name__}")
        self.stack[-1].extend(values)

    def _empty_dict(self, argument: None) -> None:
        self.stack.append({})

    def _dict(self, argument: None) -> None:
        pairs = self._since_mark()
        self.stack.append({})
        self._set_items(pairs)

    def _setitem(self, argument: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _setitems(self, argument: None) -> None:
        self._set_items(self._since_mark())

    def _set_items(self, pairs: list[Any]) -> None:
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            set_item(self.stack[-1], key, value)

    def _put(self, place: int) -> None:
        self._memo[place] = self.stack[-1]

    def _memoize(self, argument: None) -> None:
        self._memo[len(self._memo)] = self.stack[-1]

    def _get(self, place: int) -> None:
        self.stack.append(self._memo[place])

    def _global(self, argument: str) -> None:
        self.stack.append(self._named(*argument.split(" ", 1)))

    def _stack_global(self, argument: None) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self._named(module, name))

    def _named(self, module: Any, name: Any) -> Any:
        if f"{module}.{name}" not in self._names:
            raise InputError(f"asks for {shown(f'{module}.{name}')[1:-1]}; {ONLY_TENSORS}")
        return self._names[f"{module}.{name}"]

    def _reduce(self, argument: None) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not callable(function) or type(arguments) is not tuple:  # nothing but the table's entries can be called
            raise TypeError(f"calls a {type(function).__name__} with a {type(arguments).__name__}")
        self.stack.append(function(*arguments))

    def _build(self, argument: None) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(target) is not dict:  # of a dictionary: `_metadata`, the versions of the layers
            target_build = getattr(target, "build", None)
            if target_build is None:
                raise InputError(f"its pickle gives a state to a {type(target).__name__}; {ONLY_TENSORS}")
            target_build(state)

    def _binpersid(self, argument: None) -> None:
        self._persid(self.stack.pop())

    def _persid(self, identity: Any) -> None:
        if self._persistent is None:
            raise InputError(f"its pickle has a persistent id where none belongs; {ONLY_TENSORS}")
        self.stack.append(self._persistent(identity))


_OPERATIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine._proto, "FRAME": _Machine._nothing, "STOP": _Machine._nothing, "MARK": _Machine._mark,
    "POP": _Machine._pop, "POP_MARK": _Machine._pop_mark, "TUPLE": _Machine._tuple, "LIST": _Machine._list,
    "EMPTY_LIST": _Machine._empty_list, "APPEND": _Machine._append, "APPENDS": _Machine._appends, "DICT": _Machine._dict,
    "EMPTY_DICT": _Machine._empty_dict, "SETITEM": _Machine._setitem, "SETITEMS": _Machine._setitems, "PUT": _Machine._put,
    "BINPUT": _Machine._put, "LONG_BINPUT": _Machine._put, "MEMOIZE": _Machine._memoize, "GET": _Machine._get,
    "BINGET": _Machine._get, "LONG_BINGET": _Machine._get, "GLOBAL": _Machine._global, "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce, "NEWOBJ": _Machine._reduce, "BUILD": _Machine._build, "BINPERSID": _Machine._binpersid,
    "PERSID": _Machine._persid,
}
