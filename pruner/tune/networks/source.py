"""Import a network: from the catalog, a factory, ``.pt2`` or ``.onnx``."""

from __future__ import annotations

import importlib
import inspect
import random
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import pruner
from pruner.errors import MissingExtra, PrunerError, lines_of
from pruner.tune.measure.numerics import Kind
from pruner.tune.networks import host_memory
from pruner.tune.networks.exported_file import opened
from pruner.tune.networks.onnx_import import from_onnx, onnx_inputs
from pruner.tune.networks.plain import Arguments, arguments_of, plain_call, tensors_of
from pruner.tune.networks.signature import PRECISION, ROUNDS, exported, precision
from pruner.tune.networks.sizes import CATALOG, NetworkOptions
from pruner.tune.tvm_import import inside, load_tvm

if TYPE_CHECKING:  # reading the tasks of a network must not wait for torch
    from torch import nn

# Messages of TVM's front ends for torch and for ONNX about operators that they lack.
_UNKNOWN = re.compile(r"Unsupported function types \[(.+)\]|not supported for frontend ONNX: (.+)")

# Kinds of torch's errors about values that it does not have while it exports.
_OF_VALUES = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSource:
    """The definition of a network; equal sources give equal weights, too."""

    name: str  # of the catalog, package:factory, or a file
    options: NetworkOptions = field(default_factory=NetworkOptions)
    seed: int = 0

    @staticmethod
    def read(content: Mapping[str, Any]) -> NetworkSource:
        """Read a source that was written as JSON."""
        sizes = dict(content["options"])
        if "given" not in sizes:  # earlier versions wrote every size, a batch of 1 by default
            batch = sizes.get("batch", 1)
            sizes = {"given": {**sizes, "batch": batch if batch > 1 else None}}
        return NetworkSource(**{**content, "options": NetworkOptions(**sizes["given"])})

    @property
    def label(self) -> str:
        """Return a name for folders and tables."""
        return self.path.stem if self.path is not None else self.name.replace(":", "-")

    @property
    def path(self) -> Path | None:
        """Return the network's file, None for other sources."""
        return Path(self.name) if Path(self.name).suffix in (".pt2", ".onnx") else None

    @property
    def is_onnx(self) -> bool:
        """True for an ONNX file, which holds no torch module."""
        return self.path is not None and self.path.suffix == ".onnx"

    @property
    def resolved(self) -> NetworkSource:
        """Return an equal source with an absolute path."""
        return self if self.path is None else replace(self, name=str(self.path.resolve()))

    def check_name(self) -> None:
        """Check that the name may be a network's, without importing anything.

        Raises `PrunerError`: a name without a colon that is neither the catalog's nor a file's, or
        a file of another kind.
        """
        if self.path is not None:
            return
        package, colon, factory = self.name.partition(":")
        if package.endswith(".py"):
            raise PrunerError(
                f"network={self.name}: name the module, network={Path(package).stem}:"
                f"{factory or 'FACTORY'}, in the folder of this file or with PYTHONPATH=FOLDER"
            )
        if not colon and Path(self.name).is_file():
            raise PrunerError(
                f"network={self.name}: a file must be FILE.pt2 (of torch.export.save) or "
                "FILE.onnx; weights alone and pickled modules: return the module in Python, "
                "package:factory"
            )
        if not colon and self.name not in CATALOG:
            found = "a folder" if Path(self.name).is_dir() else "unknown"
            raise PrunerError(
                f"network={self.name} is {found}; known: {', '.join(CATALOG)}, package:factory, "
                "or a file FILE.pt2 or FILE.onnx"
            )

    def check_sizes(self, known: Sequence[str]) -> None:
        """Check that no size is set except the batch and `known` sizes.

        Raises `PrunerError`: another size is set.
        """
        odd = [f"sizes.{name}" for name in self.options.given if name not in ("batch", *known)]
        if odd:
            has = ", ".join(["sizes.batch", *(f"sizes.{name}" for name in known)])
            raise PrunerError(f"network={self.name}: leave {', '.join(odd)} out, it has {has}")


def example_of(source: NetworkSource) -> tuple[nn.Module, Arguments]:
    """Make the module, in evaluation mode, and example inputs by position and by name.

    A factory is called with the :class:`NetworkOptions` where it takes ``options``, else without
    arguments. It returns the module and its inputs: a tensor, a tuple in order, or a mapping by
    name; a tuple and a mapping where it has both.

    Raises `PrunerError`: no such network or file, a factory that returns something else, or sizes
    that it does not take.
    """
    source.check_name()
    torch = importlib.import_module("torch")
    # before the factory draws the weights: equal sources give equal networks
    seed_all(source.seed)
    if source.is_onnx:
        raise PrunerError(f"network={source.name}: an ONNX file holds no torch module")
    if source.path is not None:
        program = opened(source.path, source.name, source.options)
        return program.module(), program.example_inputs
    if source.name in CATALOG:
        source.check_sizes(CATALOG[source.name])
        catalog = importlib.import_module("pruner.tune.networks.catalog")
        module, inputs = catalog.NETWORKS[source.name](source.options)
        return module, (inputs, {})
    package, _, factory = source.name.partition(":")
    own_path()
    try:
        make = getattr(importlib.import_module(package), factory)
    except (ImportError, AttributeError) as error:
        raise PrunerError(f"network={source.name}: {error}") from error
    seed_all(source.seed)  # again: the import may have drawn numbers, and it imports only once
    is_function = callable(make) and not isinstance(make, torch.nn.Module)
    found = _called(make, source) if is_function else None
    if not (
        isinstance(found, tuple)
        and len(found) in (2, 3)
        and isinstance(found[0], torch.nn.Module)
        and isinstance(found[1], Iterable)
    ):
        raise PrunerError(
            f"network={source.name}: the factory must return (nn.Module, tuple of example inputs), "
            "or also a dict of inputs by name"
        )
    for part in found[0].modules():
        if isinstance(part, torch.nn.TransformerEncoder):
            # it would return zeros for padding, which an exported program does not
            part.use_nested_tensor = False
    args, kwargs = arguments_of(found[1])
    found[0].eval()
    by_name = {**kwargs, **(found[2] if len(found) == 3 else {})}
    return plain_call(found[0], (args, by_name))


def seed_all(seed: int) -> None:
    """Seed the random numbers of Python, numpy and torch for the user's code."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    importlib.import_module("torch").manual_seed(seed)


def own_path() -> None:
    """Let imports find the modules of the working directory."""
    if str(Path.cwd()) not in sys.path:
        # a command's path begins with its script's folder, not with the working directory
        sys.path.insert(0, str(Path.cwd()))


def inputs_of(source: NetworkSource, kind: Kind = "signed") -> Sequence[NDArray[Any]]:
    """Return the tensors of the example inputs, or seeded inputs for an ONNX file.

    ``kind``: of the seeded inputs.

    Raises `PrunerError`: sizes that are left open, or no such network.
    """
    if source.path is None or not source.is_onnx:
        return [np.asarray(tensor.detach()) for tensor in tensors_of(example_of(source)[1])]
    with _in_one_line(source.name):
        return onnx_inputs(source.path, source.name, source.options, source.seed, kind)


def _called(make: Callable[..., Any], source: NetworkSource) -> Any:
    if "options" in inspect.signature(make).parameters:
        source.check_sizes(("image", "length", "layers"))
        return make(options=source.options)
    if source.options.given:
        reason = "this factory takes no argument options"
        raise PrunerError(f"network={source.name}: leave sizes.* out, {reason}")
    return make()


def import_network(source: NetworkSource) -> Any:
    """Import the network as a Relax module with bound parameters.

    Raises `PrunerError`: it cannot be exported, TVM lacks one of its operators, it was exported in
    training mode, or it takes more memory than is free; in one line.
    """
    with _in_one_line(source.name):
        return _complete(_imported(source), source.name)


def import_module(module: nn.Module, inputs: Any, name: str) -> Any:
    """Import a module in evaluation mode for its shapes; its calls are not compared.

    `inputs`: a tensor, inputs in order, or a mapping by name.

    Raises `PrunerError`: see `import_network`.
    """
    with _in_one_line(name):
        host_memory.check(name, host_memory.module_bytes(module), held=1)
        return _complete(_programs().from_module(*plain_call(module, arguments_of(inputs))), name)


def _complete(module: Any, name: str) -> Any:
    """Write into ``main`` in which precision it computes, and whether it rounds."""
    main, norm = module["main"], load_tvm().tvm.ir.Op.get("relax.nn.batch_norm")
    calls = inside(main.body, load_tvm().relax.Call)
    # in training mode TVM's passes would use the statistics of the batch as the network's own
    if any(norm.same_as(call.op) and bool(call.attrs.training) for call in calls):
        raise PrunerError(
            f"network={name}: its batch normalisations are in training mode; export it "
            "in evaluation mode (network.eval() in torch, training_mode=0 in ONNX)"
        )
    operators = {str(call.op.name) for call in calls if hasattr(call.op, "name")}
    main = main.with_attr(ROUNDS, bool(operators & {"relax.round", "relax.quantize"}))
    if PRECISION not in main.attrs:
        values = [*main.params, *calls, *(value for call in calls for value in call.args)]
        types = {str(getattr(getattr(value, "ty", None), "dtype", "")) for value in values}
        main = main.with_attr(PRECISION, precision(types))
    module["main"] = main
    return module


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    """Raise any error of an import as a PrunerError of one line."""
    try:
        yield
    except MissingExtra:
        raise
    except PrunerError as error:
        about = f"network={name}"
        raise PrunerError(str(error) if about in str(error) else f"{about}: {error}") from error
    except FileNotFoundError as error:
        other = "" if str(error.filename) in ("None", name) else f"{error.filename}: "
        raise PrunerError(f"network={name}: {other}no such file{_place(error)}") from error
    except (Exception, SystemExit) as error:  # kinds of exporters, front ends and the user's code
        line = lines_of(error)[0]
        message = _unknown_operators(line) or _failed_export(error, line)
        raise PrunerError(f"network={name}: {message}") from error


def _unknown_operators(line: str) -> str | None:
    """Explain a front end's line that names missing operators, else None."""
    found = _UNKNOWN.search(line)
    if found is None:
        return None
    names = sorted(name.strip(" '") for name in (found[1] or found[2]).split(","))
    return (
        f"TVM cannot import {', '.join(names)}; write that part with other operators, or leave it "
        "out of the network"
    )


def _failed_export(error: BaseException, line: str) -> str:
    """Describe an error of an export, with the line of the user code."""
    place, kind = _place(error), type(error).__name__
    if kind in _OF_VALUES:
        return (
            "torch.export cannot follow a branch or a size that depends on values of tensors"
            f"{place}: write it with torch.where or with fixed sizes ({kind}: {line})"
        )
    if "torch.classes.quantized" in line:
        return (
            "it holds packed weights of torch.ao's quantised modules, which torch.export refuses; "
            f"bring the network before it was quantised ({kind})"
        )
    return f"{kind}: {line}{place}"


def _place(error: BaseException) -> str:
    """Name the last line of the user's code that an error passed."""
    ours = (str(Path(pruner.__file__).parent), sysconfig.get_paths()["stdlib"], "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and not frame.filename.startswith(ours)
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f" (line {last.lineno} of {Path(last.filename).name}: {last.line})"


def _imported(source: NetworkSource) -> Any:
    if source.path is not None:
        host_memory.check(source.name, source.path.stat().st_size)
        if source.is_onnx:
            return from_onnx(source.path, source.name, source.options)
        return _programs().from_exported(opened(source.path, source.name, source.options))
    known = importlib.import_module("pruner.tune.networks.catalog").NETWORKS
    if source.name in known:
        host_memory.check_named(source.name, source.options)
    network, arguments = example_of(source)
    # a user's factory makes the weights before their size is known
    host_memory.check(source.name, host_memory.module_bytes(network), held=1)
    return _programs().from_exported(exported(network, arguments, is_pure=source.name in known))


def _programs() -> Any:
    # its operators need torch
    return importlib.import_module("pruner.tune.networks.operators.program")
