"""Read pickles without running anything in them.

Opcodes are checked against a list before the file is opened as a pickle; a name in it is replaced
by an inert stand-in of a table, or refused.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pruner.errors import DataError

# fmt: off
DATA_OPCODES = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET",
    "LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_TUPLE",
    "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM", "SETITEMS", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
})
# fmt: on
"""Opcodes of plain data and of objects of named types, common to every kind of file.
"""


class UnsafePickle(DataError):
    """The file has an opcode or name that its kind never needs; nothing ran."""


def load_named(
    payload: bytes, names: Mapping[tuple[str, str], Any], opcodes: frozenset[str]
) -> Any:
    """Load a pickle by replacements of its (module, name); raises `UnsafePickle` or `DataError`."""
    check_opcodes(payload, opcodes)
    try:
        return _NamedUnpickler(io.BytesIO(payload), names).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise any error
        raise DataError(f"damaged pickle ({type(error).__name__}: {first_line(error)})") from error


def check_opcodes(payload: bytes, allowed: frozenset[str]) -> None:
    """Refuse a pickle with another opcode or a memo index that only claims memory."""
    try:
        for count, (opcode, value, position) in enumerate(pickletools.genops(payload)):
            if opcode.name not in allowed:
                raise UnsafePickle(f"refused: opcode {opcode.name} at byte {position}")
            if opcode.name == "LONG_BINPUT" and int(value or 0) > count:
                raise UnsafePickle(f"refused: memo index {value} at byte {position}")
    except ValueError as error:
        raise DataError(f"damaged pickle ({error})") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [""])[0]


def plain_keys(keys: Iterable[object]) -> None:
    """Raise `UnsafePickle` where a key is no plain value: hashing it could run code."""
    for key in keys:
        if type(key) not in _KEYS:
            raise UnsafePickle(
                f"refused: a key or a member of a set that is a {type(key).__name__}"
            )


_KEYS = (str, int, float, bool, bytes, type(None))


_PYTHON: dict[int, Any] = pickle._Unpickler.dispatch  # the C version has no hook for checks


def _looking(opcode: bytes, keys: slice) -> tuple[int, Callable[[Any], None]]:

    def load(unpickler: Any) -> None:
        plain_keys(unpickler.stack[keys])
        _PYTHON[opcode[0]](unpickler)

    return opcode[0], load


_SECOND, _EVERY = slice(None, None, 2), slice(None)  # of what lies since the mark


class _NamedUnpickler(pickle._Unpickler):
    """Unpickles names of the table only, and plain keys only."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **_PYTHON,
        **dict(
            (
                _looking(pickle.SETITEM, slice(-2, -1)),
                _looking(pickle.SETITEMS, _SECOND),
                _looking(pickle.DICT, _SECOND),
                _looking(pickle.ADDITEMS, _EVERY),
                _looking(pickle.FROZENSET, _EVERY),
            )
        ),
    }

    def __init__(self, stream: io.BytesIO, names: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(stream)
        self._names = names

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._names[module, name]
        except KeyError:
            raise UnsafePickle(f"refused: it names {module}.{name}") from None

    def persistent_load(self, pid: object) -> Any:
        raise UnsafePickle(f"refused: persistent identifier {pid!r}")
