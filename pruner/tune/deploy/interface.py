"""Keep the inputs and outputs of a built network inside its library.

A library that was moved alone still describes its call: its function :data:`INTERFACE` returns
inputs and outputs as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.measure.targets import vectors_of
from pruner.tune.networks.rewrites.operators import operator_name
from pruner.tune.networks.signature import INPUTS, OUTPUTS, PRECISION, ROUNDS
from pruner.tune.tvm_import import load_tvm

INTERFACE = "pruner_interface"  # a function of the library


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input: its name in the network, shape and type (float32 ...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """Format the input for people."""
        return f"{self.name}: {self.dtype} {'x'.join(map(str, self.shape)) or 'scalar'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """How a library is called.

    ``outputs`` and ``arguments``: the structures of outputs and of arguments by position and by
    name (:mod:`pruner.tune.networks.signature`); None: a tensor or a tuple, and tensors by
    position. ``precision``: the coarsest type of its numbers. ``rounds``: it quantises.
    ``vectors``: the CPU's vector instructions that it needs, as LLVM names them. ``copied``:
    numbers of the outputs that a call must copy.
    """

    inputs: Sequence[Input]
    outputs: Any
    device: str  # cpu or cuda
    threads: int  # that it was built for
    arguments: Any = None
    precision: str = "float32"
    rounds: bool = False
    vectors: Sequence[str] = ()
    copied: Sequence[int] = ()

    @staticmethod
    def of(module: Any, target: Any, threads: int) -> Interface:
        """Describe a lowered network."""
        main = module["main"]
        on_cpu = target.kind.name == "llvm"
        has_processor = on_cpu and target.attrs.get("mcpu") is not None
        features = load_tvm().tvm.target.codegen.llvm_get_cpu_features
        return Interface(
            inputs=[
                Input(name=one.name, shape=tuple(map(int, one.ty.shape)), dtype=str(one.ty.dtype))
                for one in main.params
            ],
            outputs=json.loads(str(main.attrs.get(OUTPUTS, "null"))),
            device="cpu" if on_cpu else str(target.kind.name),
            threads=threads,
            arguments=json.loads(str(main.attrs.get(INPUTS, "null"))),
            precision=str(main.attrs.get(PRECISION, "float32")),
            rounds=bool(main.attrs.get(ROUNDS, False)),
            vectors=vectors_of(features(target)) if has_processor else [],
            copied=_copied(module),
        )

    @staticmethod
    def of_json(found: Mapping[str, Any]) -> Interface:
        """Make an interface of its JSON."""
        inputs = [Input(**{**one, "shape": tuple(one["shape"])}) for one in found["inputs"]]
        return Interface(**{**found, "inputs": inputs})


def _copied(module: Any) -> list[int]:
    """List the outputs that a call must copy.

    They lie in the memory of an input, a constant or an earlier output: TVM hands on a tensor for
    its copy, and makes views of reshapes.
    """
    relax, main = load_tvm().relax, module["main"]
    bound = {hash(one.var): one.value for block in main.body.blocks for one in block.bindings}

    def memory(value: Any) -> Any:
        """Name the new memory of a tensor or tuple; None for older memory."""
        if isinstance(value, relax.Tuple):
            return [memory(one) for one in value.fields]
        if isinstance(value, relax.TupleGetItem):
            whole = memory(value.tuple_value)
            return whole and whole[int(value.index)]
        made = bound.get(hash(value))
        if not isinstance(made, relax.Call):
            return None if made is None else memory(made)
        name = operator_name(made)
        if name == "relax.call_tir" and relax.analysis.has_reshape_pattern(module[made.args[0]]):
            return memory(made.args[1])[0]
        if name not in ("relax.call_tir", "relax.call_dps_packed"):
            return None
        fields = getattr(made.ty, "fields", None)
        return hash(value) if fields is None else [(hash(value), n) for n in range(len(fields))]

    found = memory(main.body.body)
    number = len(getattr(main.ret_ty, "fields", "1"))
    places = found if isinstance(found, list) else [found] * number
    return [n for n, one in enumerate(places) if one is None or one in places[:n]]


def with_interface(module: Any, interface: Interface) -> Any:
    """Add a function to a lowered network that returns its interface."""
    ir, relax = load_tvm().tvm.ir, load_tvm().relax
    text = json.dumps(asdict(interface))
    # a function, since TVM's virtual machine keeps no attributes of a module
    function = relax.Function([], ir.StringImm(text), relax.ObjectType())
    module = module.clone()
    module[INTERFACE] = function.with_attr("global_symbol", INTERFACE)
    return module


def arranged(structure: Any, outputs: Sequence[Any]) -> Any:
    """Arrange outputs in a structure of :mod:`pruner.tune.networks.signature`."""
    if structure is None:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    if isinstance(structure, int):
        return outputs[structure]
    ((kind, parts),) = structure.items()
    if kind == "value":
        return parts
    if kind == "dict":
        return {key: arranged(part, outputs) for key, part in parts}
    found = [arranged(part, outputs) for part in parts]
    return tuple(found) if kind == "tuple" else found


def names_of(structure: Any, path: str = "") -> list[str]:
    """List the names of tensors in a structure: ``parts.1`` or ``0``."""
    if structure is None:
        return []
    if isinstance(structure, int):
        return [path or "0"]
    ((kind, parts),) = structure.items()
    if kind == "value":
        return []
    pairs = parts if kind == "dict" else enumerate(parts)
    return [name for key, part in pairs for name in names_of(part, f"{path}.{key}".lstrip("."))]


def flattened(structure: Any, given: Any, path: str) -> list[Any]:
    """List the tensors of `given` arguments, which have a structure.

    Constants were built in: they may be left out, and must be equal where they are given. Raises
    `PrunerError`: they have another structure; the message has the `path`.
    """
    if isinstance(structure, int):
        if not hasattr(given, "shape"):
            raise PrunerError(f"{path} is {_about(given)}, a tensor is wanted")
        return [given]
    ((kind, parts),) = structure.items()
    if kind == "value":
        if given is not _ABSENT and (hasattr(given, "shape") or given != parts):
            raise PrunerError(f"{path} is {_about(given)}, and {parts!r} is built in")
        return []
    if kind == "dict":
        if not isinstance(given, Mapping):
            raise PrunerError(f"{path} is {_about(given)}, a dict is wanted")
        wanted, values = dict(parts), dict(given)
    else:
        if not isinstance(given, list | tuple):
            raise PrunerError(f"{path} is {_about(given)}, a {kind} is wanted")
        wanted, values = dict(enumerate(parts)), dict(enumerate(given))
    if odd := [key for key in values if key not in wanted]:
        raise PrunerError(f"{path} has {odd[0]!r}, which the network does not take")
    return [
        tensor
        for key, part in wanted.items()
        for tensor in flattened(part, values.get(key, _ABSENT), f"{path}[{key!r}]")
    ]


_ABSENT = object()


def _about(given: Any) -> str:
    if given is _ABSENT:
        return "left out"
    return f"of {type(given).__name__}" if hasattr(given, "__len__") else repr(given)
