"""Keep the inputs and outputs of a built network inside its library.

A library that was moved alone still describes its call: its function :data:`INTERFACE` returns
inputs and outputs as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pruner.tune.networks.torch_import import OUTPUTS
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

    ``outputs``: their structure, as :func:`~pruner.tune.networks.torch_import.described` gives it;
    None: a tensor, or a tuple. ``device``: cpu or cuda. ``threads``: cores that it was built for.
    """

    inputs: Sequence[Input]
    outputs: Any
    device: str
    threads: int

    @staticmethod
    def of(module: Any, target: Any, threads: int) -> Interface:
        """Describe a lowered network."""
        main = module["main"]
        return Interface(
            inputs=[
                Input(name=one.name, shape=tuple(map(int, one.ty.shape)), dtype=str(one.ty.dtype))
                for one in main.params
            ],
            outputs=json.loads(str(main.attrs.get(OUTPUTS, "null"))),
            device="cpu" if target.kind.name == "llvm" else str(target.kind.name),
            threads=threads,
        )

    @staticmethod
    def read(text: str) -> Interface:
        """Parse the text that `with_interface` put into a library."""
        found = json.loads(text)
        inputs = [Input(**{**one, "shape": tuple(one["shape"])}) for one in found["inputs"]]
        return Interface(**{**found, "inputs": inputs})


def with_interface(module: Any, target: Any, threads: int) -> Any:
    """Add a function to a lowered network that returns its interface."""
    ir, relax = load_tvm().tvm.ir, load_tvm().relax
    text = json.dumps(asdict(Interface.of(module, target, threads)))
    # a function, since TVM's virtual machine keeps no attributes of a module
    function = relax.Function([], ir.StringImm(text), relax.ObjectType())
    module = module.clone()
    module[INTERFACE] = function.with_attr("global_symbol", INTERFACE)
    return module


def arranged(structure: Any, outputs: Sequence[Any]) -> Any:
    """Arrange outputs in a structure of :func:`~pruner.tune.networks.torch_import.described`."""
    if structure is None:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)
    if isinstance(structure, int):
        return outputs[structure]
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {key: arranged(part, outputs) for key, part in parts}
    found = [arranged(part, outputs) for part in parts]
    return tuple(found) if kind == "tuple" else found
