"""Read pickled PyTorch modules without running any code.

The few names that a module of linear layers, batch norm and attention needs become inert records or
plain tensors, and any other name is refused (:mod:`pruner.data.tenset.safe_pickle`). The bytes of a
tensor are themselves a small PyTorch file, opened with ``weights_only=True``.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from pruner.data.tenset.safe_pickle import (
    DATA_OPCODES,
    UnsafePickle,
    first_line,
    load_named,
    plain_keys,
)
from pruner.errors import DataError

MAX_BYTES = 256 * 2**20
"""The official checkpoints have 1.7 MB; a larger file than this is none of them."""

ALLOWED_OPCODES = DATA_OPCODES | {"SHORT_BINBYTES", "BINBYTES", "EMPTY_SET", "ADDITEMS"}
"""Plain data and objects of named types, with the sets and byte strings of modules."""

MODULE_NAMES = frozenset(
    {
        ("tvm.auto_scheduler.cost_model.pam_model", "PAMModule"),
        ("torch.nn.modules.container", "Sequential"),
        ("torch.nn.modules.linear", "Linear"),
        ("torch.nn.modules.linear", "_LinearWithBias"),
        ("torch.nn.modules.linear", "NonDynamicallyQuantizableLinear"),
        ("torch.nn.modules.activation", "ReLU"),
        ("torch.nn.modules.activation", "MultiheadAttention"),
        ("torch.nn.modules.batchnorm", "BatchNorm1d"),
    }
)
"""Classes of modules that the official network is made of."""


class InertModule:
    """Stand-in for a module: holds its attributes and nothing else."""

    state: object = None

    def __new__(cls, *args: object) -> InertModule:
        """Modules are pickled without constructor arguments."""
        if args:
            raise UnsafePickle("refused: a module with constructor arguments")
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Store the attributes."""
        self.state = state

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and buffers by dotted name; raises DataError where it is no module."""
        if not isinstance(self.state, dict):
            raise DataError("a module without attributes")
        found: dict[str, Tensor] = {}
        for kind in ("_parameters", "_buffers"):
            for name, value in _mapping(self.state, kind).items():
                if isinstance(value, Tensor):
                    found[f"{prefix}{name}"] = value
                elif value is not None:
                    raise DataError(f"{prefix}{name} is not a tensor")
        for name, module in _mapping(self.state, "_modules").items():
            if isinstance(module, InertModule):
                found |= module.tensors(f"{prefix}{name}.")
        return found


def _mapping(state: dict[Any, Any], name: str) -> dict[str, object]:
    value = state.get(name, {})
    if not isinstance(value, dict):
        raise DataError(f"a module whose {name} are no mapping")
    return value


def load_modules(payload: bytes) -> Any:
    """The pickled value, with :class:`InertModule`; raises as `load_named`."""
    return load_named(payload, _names(), ALLOWED_OPCODES)


def _storage(payload: object) -> Tensor:
    """The numbers of a pickled storage as a flat CPU tensor."""
    if not isinstance(payload, bytes):
        raise UnsafePickle("refused: a tensor storage that is not made of bytes")
    try:
        loaded = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsafePickle(
            f"refused: a tensor storage with more in it ({first_line(error)})"
        ) from error
    if not isinstance(loaded, torch.TypedStorage):
        raise UnsafePickle(f"refused: a tensor storage that is a {type(loaded).__name__}")
    flat = torch.empty(0, dtype=loaded.dtype)
    flat.set_(loaded._untyped_storage)
    return flat


def _tensor(storage: object, offset: object, size: object, stride: object, *_: object) -> Tensor:
    """``torch._utils._rebuild_tensor_v2`` within the bounds of the storage."""
    if not isinstance(storage, Tensor) or not isinstance(offset, int) or offset < 0:
        raise UnsafePickle("refused: a tensor without storage")
    sizes, strides = _counts(size), _counts(stride)
    if len(sizes) != len(strides):
        raise UnsafePickle("refused: a tensor whose sizes and strides do not match")
    # The farthest element: all others are nearer to the offset.
    last = offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if 0 not in sizes and last >= storage.numel():
        raise UnsafePickle("refused: a tensor larger than its storage")
    # A copy: the tensor must neither share its storage nor keep a larger one alive.
    return torch.as_strided(storage, sizes, strides, offset).clone()


def _counts(value: object) -> tuple[int, ...]:
    if isinstance(value, tuple) and all(type(n) is int and n >= 0 for n in value):
        return value
    raise UnsafePickle("refused: a tensor whose size is no tuple of counts")


def _parameter(data: object, *_: object) -> Tensor:
    """``torch._utils._rebuild_parameter``: the tensor itself."""
    if not isinstance(data, Tensor):
        raise UnsafePickle("refused: a parameter that is no tensor")
    return data


def _ordered(*arguments: object) -> OrderedDict[Any, Any]:
    """``collections.OrderedDict``, pickled empty; its items follow."""
    if arguments:
        raise UnsafePickle("refused: a mapping with constructor arguments")
    return OrderedDict()


def _set(members: object = ()) -> set[Any]:
    """``set`` of text and numbers."""
    if not isinstance(members, list | tuple):
        raise UnsafePickle("refused: a set that is not made of a list")
    plain_keys(members)
    return set(members)


def _names() -> dict[tuple[str, str], Any]:
    """Replacements of the allowed names, new for every file, which could change them."""

    def callable_only(function: Any) -> type:
        # A class, because a pickle can set attributes of a function.
        return type("Call", (), {"__slots__": (), "__new__": lambda _cls, *a: function(*a)})

    table: dict[tuple[str, str], Any] = {
        ("torch._utils", "_rebuild_tensor_v2"): callable_only(_tensor),
        ("torch._utils", "_rebuild_parameter"): callable_only(_parameter),
        ("torch.storage", "_load_from_bytes"): callable_only(_storage),
        ("collections", "OrderedDict"): callable_only(_ordered),
        ("builtins", "set"): callable_only(_set),
        ("__builtin__", "set"): callable_only(_set),
    }
    return table | {key: type(key[1], (InertModule,), {}) for key in MODULE_NAMES}
