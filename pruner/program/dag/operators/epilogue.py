"""Operations fused behind an operator: a bias, an added input, the rectifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pruner.errors import UnsupportedProgram
from pruner.program.dag.expr import add, axes, load
from pruner.program.dag.operators.builder import DagBuilder, Dims, Tensors
from pruner.program.dag.operators.relu import append_relu


@dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """An operation behind another; ``torch`` takes ``inputs`` from the list of inputs left."""

    dag: Callable[[DagBuilder], None]
    te: Callable[[Any, Any, Tensors], Tensors]
    torch: Callable[[Any, Any, list[Any]], Any]
    inputs: int = 0


def channel_of(rank: int) -> int:
    """Return a bias's axis: channels of NCHW images, otherwise the last."""
    return 1 if rank == 4 else rank - 1


def _append_sum(dag: DagBuilder, *, per_channel: bool) -> None:
    shape, source = dag.stages[-1].shape, dag.last
    index = axes(len(shape))
    channel = channel_of(len(shape))
    if per_channel:
        other = load(dag.placeholder("bias", (shape[channel],)), index[channel])
    else:
        other = load(dag.placeholder("input2", shape), *index)
    dims: Dims = [(f"ax{i}", extent) for i, extent in enumerate(shape)]
    # TOPI names broadcasting additions so; the flag "add" of the workload is read off the text.
    dag.compute("T_add", dims, add(load(source, *index), other))


def _te_bias(te: Any, _topi: Any, tensors: Tensors) -> Tensors:
    *inputs, out = tensors
    channel = channel_of(len(out.shape))
    bias = te.placeholder((out.shape[channel],), out.dtype, name="bias")
    total = te.compute(out.shape, lambda *i: out(*i) + bias(i[channel]), name="bias_add")
    return [*inputs, bias, total]


def _torch_bias(_torch: Any, out: Any, rest: list[Any]) -> Any:
    sizes = [1] * out.dim()
    sizes[channel_of(out.dim())] = -1
    return out + rest.pop(0).view(sizes)


def _te_add(te: Any, _topi: Any, tensors: Tensors) -> Tensors:
    *inputs, out = tensors
    other = te.placeholder(out.shape, out.dtype, name="other")
    return [*inputs, other, te.compute(out.shape, lambda *i: out(*i) + other(*i), name="add")]


EPILOGUES: dict[str, Epilogue] = {
    # one number a channel
    "bias": Epilogue(
        dag=partial(_append_sum, per_channel=True), te=_te_bias, torch=_torch_bias, inputs=1
    ),
    # one more input of the output's shape
    "add": Epilogue(
        dag=partial(_append_sum, per_channel=False),
        te=_te_add,
        torch=lambda _, out, rest: out + rest.pop(0),
        inputs=1,
    ),
    "relu": Epilogue(
        dag=append_relu,
        te=lambda _, topi, tensors: [*tensors[:-1], topi.nn.relu(tensors[-1])],
        torch=lambda torch, out, _: torch.relu(out),
    ),
}


def epilogues(fused: Sequence[str]) -> list[Epilogue]:
    """Return the named operations; raise :class:`UnsupportedProgram` (``unknown-epilogue``)."""
    # Log names join operations: conv2d_add_relu.
    names = [part for group in fused for part in group.split("_")]
    for name in names:
        if name not in EPILOGUES:
            raise UnsupportedProgram("unknown-epilogue", f"{name!r}; known: {', '.join(EPILOGUES)}")
    return [EPILOGUES[name] for name in names]
