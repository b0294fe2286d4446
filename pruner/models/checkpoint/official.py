"""Read checkpoints of the official Pruner release into our PaCM.

The release holds a pickle of (network, training mode, statement maxima, dataflow maxima), see
``PAMModelInternal.save`` in its python/tvm/auto_scheduler/cost_model/pam_model.py; some mirrors
hold the same as plain arrays (``.npz``: ``param.<name>``, ``norm_statement``, ``norm_dataflow``).
Parameters map one to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import torch
from torch import Tensor

from pruner.archives import read_arrays
from pruner.data.tenset.safe_pickle import first_line
from pruner.errors import DataError
from pruner.models.checkpoint.module_pickle import MAX_BYTES, InertModule, load_modules
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
    """The content of an official checkpoint.

    `state` by official name; `statement_max` (statement columns, then flags) and `dataflow_max`
    divide the raw features; `sha256` is the file's.
    """

    state: Mapping[str, Tensor]
    statement_max: Tensor
    dataflow_max: Tensor
    sha256: str


def read_official(path: Path) -> OfficialWeights:
    """Read a ``.pkl`` of the release, or an ``.npz``; nothing runs.

    The ``.npz`` has the same content.

    Raises:
        UnsafePickle: the pickle names something that no checkpoint needs.
        DataError: the file is missing, damaged or of another kind.
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
    """Replace subnormal values by zeros.

    Weight decay left 17 % of the released values there, in the large matrices of the two encoders
    and at the attention's input 31 to 38 %. They add nothing to any score, but arithmetic with them
    takes about ten times as long on CPUs.
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
