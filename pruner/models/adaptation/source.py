"""Source programs looked at again while the target is learned."""

import torch

from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.fitting import Example, OnlineFit, normalised


def source_example(setting: Setting, method: str, most: int) -> Example:
    """At most `most` source programs as the source model sees them, drawn evenly from all.

    They are relative to their whole tasks, labelled by the best of the sample. Raises PrunerError
    where the setting has no source model or no source programs.
    """
    ranker, store = setting.needed_source(method), setting.needed_store(method)
    generator = torch.Generator().manual_seed(setting.seed)
    index = torch.randperm(store.num_programs, generator=generator)[:most]
    seen = store.relative() if ranker.relative else store
    chosen = normalised(seen.subset(index), ranker.scaler)
    return Example(store=chosen, index=OnlineFit.learnable(chosen))
