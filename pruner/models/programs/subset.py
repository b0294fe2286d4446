"""Some programs of a store as a store of their own: what an online learner has measured so far."""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from pruner.models.programs.store import ProgramStore


def subset(store: ProgramStore, index: Int[Tensor, " program"]) -> ProgramStore:
    """The given programs, in store order; tasks keep their numbers, also those left empty.

    Labels are anew best latency / latency *of the subset*: the best of the task so far.
    """
    index = index.sort().values
    rows, _ = store.row_index(index)
    counts = store.row_start[index + 1] - store.row_start[index]
    return replace(
        store,
        rows=store.rows[rows],
        row_start=torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]),
        dataflow=store.dataflow[index],
        task=store.task[index],
        latency_s=store.latency_s[index],
        line=store.line[index],
        digest=store.digest[index.numpy()],
        num_failed=0,
        tokens=None if store.tokens is None else store.tokens.take(index),
    )
