"""Read checkpoints of the official Pruner release into our PaCM, without running any code.

The release holds a pickle of (network, training mode, statement maxima, dataflow maxima), see
``PAMModelInternal.save`` in its python/tvm/auto_scheduler/cost_model/pam_model.py; some mirrors
hold the same as plain arrays (``.npz``: ``param.<name>``, ``norm_statement``, ``norm_dataflow``).
Parameters map one to one. The few names that a pickled module needs become inert records or plain
tensors (:mod:`pruner.data.tenset.safe_pickle`); the bytes of a tensor are a small PyTorch file.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from pruner.archives import read_arrays
from pruner.data.tenset.safe_pickle import (
    DATA_OPCODES,
    UnsafePickle,
    first_line,
    load_named,
    plain_keys,
)
from pruner.errors import DataError
from pruner.models.networks.layers import NormStatistics
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.batch import NUM_DATAFLOW_COLUMNS, NUM_STATEMENT_COLUMNS
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker

NUM_DATAFLOW_ROWS = 8
LAYERS = {
    "segment_encoder": "statement_encoder",
    "gemm_encoder": "dataflow_encoder",
    "attention": "attention",
    "fuse.0": "fuse",
    "norm": "norm",
    "l0.0": "residual.0.linear",
    "l1.0": "residual.1.linear",
    "decoder": "head",
}
"""Official layer to ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfficialWeights:
    """The content of an official checkpoint; `state` by official name, maxima by column."""

    state: Mapping[str, Tensor]
    statement_max: Tensor
    dataflow_max: Tensor
    sha256: str


def read_official(path: Path) -> OfficialWeights:
    """Read a ``.pkl`` of the release, or an ``.npz`` of equal content; nothing runs.

    Raises UnsafePickle for a name that no checkpoint needs, DataError for a missing or damaged
    file.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES} bytes, no official checkpoint")
        payload = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    # PK begins a zip archive, and so an .npz file.
    reader = _from_zip if payload[:2] == b"PK" else _from_pickle
    try:
        state, statement, dataflow = reader(path, payload)
        for name, values in {**state, "norm": statement, "norm of dataflow": dataflow}.items():
            if not bool(torch.isfinite(values).all()):
                raise DataError(f"{name} holds values that are not finite")
    except DataError as error:
        raise type(error)(f"{path}: {error}") from error
    return OfficialWeights(
        state=state,
        statement_max=_maxima(path, statement, NUM_STATEMENT_COLUMNS),
        dataflow_max=_maxima(path, dataflow, NUM_DATAFLOW_COLUMNS),
        sha256=hashlib.sha256(payload).hexdigest(),
    )


def _from_pickle(_path: Path, payload: bytes) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    match load_modules(payload):
        case (InertModule() as network, str(), Tensor() as statement, Tensor() as dataflow):
            return network.tensors(), statement, dataflow
        case _:
            raise DataError("not (network, mode, statement maxima, dataflow maxima)")


def _from_zip(path: Path, _payload: bytes) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    try:
        with ZipFile(path) as archive:
            if any(name.endswith("data.pkl") for name in archive.namelist()):
                raise DataError(
                    "a PyTorch file without column maxima; give the .pkl of the release"
                )
        arrays = read_arrays(path, most_unpacked=MAX_BYTES)
        values = {name: torch.from_numpy(found) for name, found in arrays.items()}
        statement, dataflow = values.pop("norm_statement"), values.pop("norm_dataflow")
    except DataError:
        raise
    except Exception as error:  # encrypted, packed in an unknown way, cut off, of other arrays
        raise DataError(
            f"no archive of official weights ({type(error).__name__}: {first_line(error)})"
        ) from error
    return {name.removeprefix("param."): v for name, v in values.items()}, statement, dataflow


def _maxima(path: Path, values: Tensor, size: int) -> Tensor:
    if values.shape != (size,) or not bool((values > 0).all()):
        raise DataError(f"{path}: expected {size} positive column maxima, got {values.shape}")
    return values.float()


def our_name(official: str) -> str | None:
    """Our name of an official parameter; None for an unknown parameter."""
    for theirs, ours in LAYERS.items():
        if official.startswith(theirs + "."):
            return ours + official.removeprefix(theirs)
    return None


def without_subnormals(values: Tensor) -> Tensor:
    """Replace subnormal values by zeros: 17 % of the released values, by weight decay.

    They add nothing to any score, but take arithmetic on CPUs about ten times as long.
    """
    if not values.is_floating_point():
        return values
    smallest = torch.finfo(values.dtype).smallest_normal
    return torch.where(values.abs() < smallest, torch.zeros_like(values), values)


def official_ranker(
    weights: OfficialWeights, norm_statistics: NormStatistics = "batch"
) -> NeuralRanker:
    """PaCM with the official weights and normalisation, in evaluation mode.

    `norm_statistics`: "batch" normalises by the candidates themselves, as the official code does.
    Raises DataError when a parameter is unknown, missing, or of another shape.
    """
    network = PaCM(num_dataflow_rows=NUM_DATAFLOW_ROWS, norm_statistics=norm_statistics)
    expected = network.state_dict()
    renamed = {our_name(name) or name: values for name, values in weights.state.items()}
    odd = sorted(expected.keys() ^ renamed.keys())
    odd += [k for k in expected.keys() & renamed.keys() if expected[k].shape != renamed[k].shape]
    if odd:
        raise DataError(f"not the official network of 417,409 parameters; differs in {odd[0]}")
    network.load_state_dict({name: without_subnormals(v) for name, v in renamed.items()})
    # The release divides by column maxima and centres nothing.
    scaler = ColumnScaler.by_maximum(weights.statement_max, weights.dataflow_max)
    return NeuralRanker(network, scaler).eval()


MAX_BYTES = 256 * 2**20
"""The official checkpoints have 1.7 MB; a larger file is not an official checkpoint."""

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
