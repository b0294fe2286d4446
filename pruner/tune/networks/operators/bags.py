"""Sums, means and maxima of bags of embeddings (``nn.EmbeddingBag``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pruner.tune.networks.operators.registry import replaces

aten = torch.ops.aten

_MODES = ("sum", "mean", "amax")


@replaces(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Gather all rows and scatter them to their bags."""
    bags = offsets.shape[0] - include_last_offset
    begun = torch.arange(indices.shape[0])[:, None] >= offsets[:bags]
    bag = begun.to(torch.int64).sum(1) - 1
    rows = weight.index_select(0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    # what is left out goes to a bag behind the others
    kept = bag if padding_idx < 0 else torch.where(indices == padding_idx, bags, bag)
    places = kept[:, None].expand(rows.shape)
    empty = torch.zeros(bags + 1, rows.shape[1], dtype=rows.dtype)
    found = empty.scatter_reduce(0, places, rows, _MODES[mode], include_self=False)
    return found[:bags], bag, torch.zeros_like(offsets), torch.zeros_like(offsets)
