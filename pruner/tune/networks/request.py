"""A requested network, and its lowered module in a file.

Records apply to functions that are equal to those of the tasks. So a network is lowered once, for
its tasks, and its library is built from the same functions, read from :data:`LOWERED`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pruner.archives import write_arrays
from pruner.errors import PrunerError
from pruner.files import as_written, read_json, write_json, write_text
from pruner.tune.networks.lowering import NetworkFormat, first_line, lower_somehow
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.tvm_import import load_tvm

REQUEST, TASKS = "network.json", "tasks.json"
LOWERED, WEIGHTS = "lowered.json", "lowered.npz"  # functions, and the constants that `main` takes
_LARGEST = 4e9  # bytes of constants to store; a larger network is imported again


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """A network, its form, and its ``target`` in TVM's attributes."""

    source: NetworkSource
    target: Mapping[str, Any]
    form: NetworkFormat = field(default_factory=NetworkFormat)

    def save(self, path: Path) -> None:
        """Write the request as JSON."""
        write_json(path, asdict(self), indent=1)

    @staticmethod
    def read(path: Path) -> NetworkRequest:
        """Read the file of `save`; raise `DataError` if damaged."""
        with as_written(path):
            content = read_json(path, dict)
            return NetworkRequest(
                source=NetworkSource.read(content["source"]),
                target=dict(content["target"]),
                form=NetworkFormat(**content["form"]),
            )

    def tvm_target(self) -> Any:
        """Make TVM's target."""
        return load_tvm().tvm.target.Target(dict(self.target))


def lowered_network(request: NetworkRequest) -> tuple[Any, NetworkFormat, str | None]:
    """Import and lower the network, for extraction and for build.

    Returns the module, its form, and why that is not the requested one; see
    :func:`~pruner.tune.networks.lowering.lower_somehow`. Raises `PrunerError`: it cannot be
    imported or lowered, in one line.
    """
    module = sized_network(request.source)
    try:
        return lower_somehow(module, request.tvm_target(), request.form)
    except Exception as error:
        raise PrunerError(f"network={request.source.name}: {first_line(error)}") from error


def sized_network(source: NetworkSource) -> Any:
    """Import a network whose sizes are fixed.

    Raises `PrunerError`: it cannot be imported, or a size is open; in one line.
    """
    module = import_network(source)
    fixed = load_tvm().tirx.IntImm
    for tensor in module["main"].params:
        extents = getattr(tensor.ty, "shape", None) or ()
        sizes = [str(size) for size in extents if not isinstance(size, fixed)]
        if sizes:
            raise PrunerError(
                f"network={source.name}: input {tensor.name} has the open size "
                f"{', '.join(sizes)}; a program has fixed sizes: export it with fixed ones"
            )
    return module


def save_lowered(module: Any, folder: Path) -> None:
    """Write a lowered network into its request's folder, unless too large.

    TVM's JSON would hold constants as text, slowly: they become parameters of ``main`` there.
    """
    tvm, relax, main = load_tvm().tvm, load_tvm().relax, module["main"]
    found: dict[int, tuple[Any, Any]] = {}  # by hash, which is that of the object

    def parameter(constant: Any) -> Any:
        name = f"constant_{len(found)}"
        new = (relax.Var(name, constant.ty), constant.value.numpy())
        return found.setdefault(hash(constant), new)[0]

    body = load_tvm().ffi.structural_map(main.body, (tvm.ir.GenericConst, parameter))
    arrays = {str(var.name): array for var, array in found.values()}
    if sum(array.nbytes for array in arrays.values()) > _LARGEST:
        return
    if not all(array.dtype.isbuiltin for array in arrays.values()):  # npz has no bfloat16
        return
    module, parameters = module.clone(), [*main.params, *(var for var, _ in found.values())]
    module["main"] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    write_arrays(folder / WEIGHTS, **arrays)
    write_text(folder / LOWERED, str(tvm.ir.save_json(module)))


def is_kept(kept: Path, source: NetworkSource) -> bool:
    """Check that a file was made from the present file of a network."""
    path = source.path
    if not kept.is_file() or path is None or not path.is_file():
        return kept.is_file()
    # the user may have exported the file again
    return path.stat().st_mtime <= kept.stat().st_mtime


def read_lowered(folder: Path) -> Any:
    """Read the lowered network of a folder, or import it anew.

    It is imported where it was not saved, and where its source file has changed since. Raises
    `PrunerError`: it cannot be imported, in one line.
    """
    request, kept = NetworkRequest.read(folder / REQUEST), folder / LOWERED
    if not is_kept(kept, request.source):
        return lowered_network(request)[0]
    tvm, relax = load_tvm().tvm, load_tvm().relax
    with as_written(kept):
        module = tvm.ir.load_json(kept.read_text(encoding="utf-8"))
        with np.load(folder / WEIGHTS) as arrays:
            constants = {name: tvm.runtime.tensor(arrays[name]) for name in arrays.files}
    # hashes of the functions do not depend on the constants, so records still apply
    return relax.transform.BindParams("main", constants)(module)
