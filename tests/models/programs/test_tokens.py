"""Primitive tokens as tensors: joined over tasks, relative, dense."""

import numpy as np
import torch

from pruner.features.primitives import PrimitiveTokens
from pruner.models.programs.batch import ProgramTokens
from pruner.models.programs.scaler import Center
from tests.models import synthetic


def test_dense_blocks_are_structure_with_decisions_written_in():
    tokens = synthetic.store().tokens
    blocks, real = tokens.dense()
    assert blocks.shape[1] == int(real.sum(1).max()) == 3
    for program in range(len(tokens.skeleton)):
        expected = tokens.structure[tokens.skeleton[program]].flatten().clone()
        places = tokens.place[tokens.skeleton[program]]
        for place, number in zip(places, tokens.number[program], strict=True):
            if place >= 0:
                expected[place] = number
        torch.testing.assert_close(blocks[program], expected.view(40, 22)[:3])


def test_joining_keeps_the_blocks_of_every_task():
    rng = np.random.default_rng(0)
    parts = [synthetic.task(rng, f"t{i}", 5).features.tokens for i in range(3)]
    joined = ProgramTokens.of(PrimitiveTokens.join(parts)).dense()[0]
    apart = torch.cat([ProgramTokens.of(part).dense()[0] for part in parts])
    assert torch.equal(joined, apart)


def test_place_means_by_hand():
    # Two skeletons decide at places 3 and 5; the second decides at 5 only.
    tokens = ProgramTokens(
        structure=torch.zeros(2, 40, 22),
        place=torch.tensor([[3, 5], [5, -1]]),
        skeleton=torch.tensor([0, 0, 1]),
        number=torch.tensor([[1.0, 2.0], [3.0, 6.0], [1.0, 0.0]]),
    )
    group = torch.zeros(3, dtype=torch.long)
    means = tokens.place_means(group, 1)
    assert means[0, 3] == (1 + 3) / 2
    assert means[0, 5] == (2 + 6 + 1) / 3
    assert means.count_nonzero() == 2
    relative = tokens.minus(means, group).number
    assert relative.tolist() == [[1 - 2, 2 - 3], [3 - 2, 6 - 3], [1 - 3, 0]]


def test_the_center_of_a_task_equals_the_relative_store():
    store = synthetic.store(sizes=(12, 9))
    relative = store.relative()
    for index in store.by_task(torch.arange(store.num_programs)):
        batch = store.programs(index)
        found = Center.of(batch).relative(batch).tokens.number
        torch.testing.assert_close(found, relative.tokens.number[index])


def test_one_task_without_tokens_leaves_the_store_without():
    rng = np.random.default_rng(0)
    from dataclasses import replace

    from pruner.models.programs.program_table import ProgramTable

    with_tokens, other = synthetic.task(rng, "a", 4), synthetic.task(rng, "b", 4)
    parts = [with_tokens, replace(other, features=replace(other.features, tokens=None))]
    store = ProgramTable.build(parts)
    assert store.tokens is None
    assert store.relative().programs(torch.arange(3)).tokens is None
