"""What is fused behind an operator: the sum with one more input, the rectifier."""

from __future__ import annotations

from pruner.errors import UnsupportedProgram
from pruner.program.dag.build import add, axes, load
from pruner.program.dag.operators.builder import Dims, Draft
from pruner.program.dag.operators.simple import append_relu


def append_fused(draft: Draft, fused: tuple[str, ...]) -> None:
    """Append each named operation to the draft's output."""
    for name in (part for group in fused for part in group.split("_")):
        if name == "add":
            append_add(draft, draft.last)
        elif name == "relu":
            append_relu(draft, draft.last)
        else:
            raise UnsupportedProgram("unknown-epilogue", f"{name!r}; known: add, relu")


def append_add(draft: Draft, source: int) -> int:
    """Add ``x + input`` with a new input of the same shape; returns the sum's position."""
    shape = draft.stages[source].shape
    other = draft.placeholder("input2", shape)
    index = axes(len(shape))
    dims: Dims = [(f"ax{i}", extent) for i, extent in enumerate(shape)]
    body = add(load(source, *index), load(other, *index))
    return draft.compute("T_add", dims, body, tag="broadcast")
