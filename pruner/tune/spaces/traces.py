"""Convert TVM's traces to decision vectors of a task's spaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.arrays import Decisions
from pruner.tune.spaces.union import UnionSpace
from pruner.tune.tvm_import import load_tvm

_PARALLEL = re.compile(r'(ann_key="meta_schedule\.parallel", ann_val=)\d+')


class Traces:
    """Assigns traces to design spaces, by their instructions before postprocessing."""

    def __init__(self, space: UnionSpace) -> None:
        self._space = space
        steps = [_steps(one.design.trace) for one in space.spaces]
        self._exact = {text: number for number, text in enumerate(steps)}
        self._like = {_PARALLEL.sub(r"\1", text): number for number, text in enumerate(steps)}

    def rows(
        self, traces: Sequence[Any], *, whatever_parallel: bool = False
    ) -> tuple[Decisions, NDArray[np.bool_]]:
        """Convert traces to decision vectors int64 [N, d] and a mask [N].

        The mask selects the traces that belong to these spaces.

        TVM's ``MutateParallel`` changes an annotation, which no decision vector holds. Such a trace
        belongs to no space here, unless ``whatever_parallel`` accepts it as a trace with the
        space's own annotation.
        """
        rows = np.zeros((len(traces), self._space.num_slots), np.int64)
        known = np.zeros(len(traces), bool)
        for row, trace in enumerate(traces):
            text = _steps(trace)
            number = self._exact.get(text)
            if number is None and whatever_parallel:
                number = self._like.get(_PARALLEL.sub(r"\1", text))
            if number is None:
                continue
            space = self._space.spaces[number]
            vector = space.design.vector(trace)
            # samplings that nothing uses may be gone from the trace: then its decisions do not fill
            # a vector of this space
            if len(vector) == space.num_slots:
                rows[row, 0], rows[row, 1 : 1 + space.num_slots] = number, vector
                known[row] = True
        return rows, known


def _steps(trace: Any) -> str:
    """Print the instructions without decisions and dead code, which TVM's search drops."""
    kept = trace.simplified(True)
    return "\n".join(map(str, load_tvm().s_tir.Trace(kept.insts, {}).as_python(True)))
