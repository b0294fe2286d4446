import numpy as np
import pytest
import torch

from pruner.data.splits import TaskSplit
from pruner.errors import DataError
from pruner.features.primitives import PrimitiveTokens
from pruner.models.programs.assemble import divide, sampled, sampled_tasks, spread
from pruner.models.programs.batch import ProgramTokens
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.scaler import Center
from tests.models import synthetic


def test_a_gathered_batch_is_what_padding_by_hand_gives():
    rng = np.random.default_rng(0)
    batches = [synthetic.features(rng, n) for n in (5, 7)]
    store = ProgramTable.build(
        TaskPrograms.of(synthetic.key(str(i)), b, synthetic.latency_of(b), np.arange(len(b)))
        for i, b in enumerate(batches)
    )
    found = store.programs(torch.tensor([11, 2, 5]))  # programs 6 of task 1, 2 of 0, 0 of 1
    expected = [
        np.concatenate([row, b.workload])
        for b, i in ((batches[1], 6), (batches[0], 2), (batches[1], 0))
        for row in b.statement[b.rows(i)]
    ]
    assert np.array_equal(found.statement.numpy(), np.stack(expected))
    counts = [batches[1].num_statements[6], batches[0].num_statements[2]]
    assert found.program.tolist()[: sum(counts)] == [0] * counts[0] + [1] * counts[1]
    assert np.array_equal(found.dataflow[1].numpy(), batches[0].dataflow[2])


def test_labels_are_best_over_latency_within_each_task_and_no_program_is_an_error():
    store = synthetic.store()
    for t in range(3):
        of_task = store.programs_of([t])
        latency = store.latency_s[of_task]
        assert torch.allclose(store.label[of_task], (latency.min() / latency).float())
        assert store.label[of_task].max() == 1.0
    with pytest.raises(DataError, match="no task has a program"):
        ProgramTable.build([])


def test_invalid_programs_are_left_out_and_counted():
    rng = np.random.default_rng(3)
    part = synthetic.task(rng, num_programs=10, invalid=4)
    assert part.num_failed == 4
    assert part.line.tolist() == [4, 5, 6, 7, 8, 9]
    assert len(part.features) == 6
    assert part.features.valid.all()


def test_a_smaller_share_is_part_of_a_larger_and_every_task_keeps_two():
    store = synthetic.store(sizes=(3, 20, 40))
    index = torch.arange(store.num_programs)
    small, large = sampled(store, index, 0.1, seed=3), sampled(store, index, 0.5, seed=3)
    assert torch.bincount(store.task[small]).tolist() == [2, 2, 4]
    assert torch.bincount(store.task[large]).tolist() == [2, 10, 20]
    assert set(small.tolist()) < set(large.tolist())
    assert torch.equal(sampled(store, index, 1.0, seed=3), index)
    assert not torch.equal(sampled(store, index, 0.5, seed=4), large)


def test_a_share_of_the_tasks_has_all_their_programs():
    store = synthetic.store(sizes=(3, 20, 40, 5, 6))
    index = torch.arange(1, store.num_programs)  # the first task has lost one
    few, more = (sampled_tasks(store, index, share, seed=1) for share in (0.1, 0.6))
    kept = torch.bincount(store.task[more], minlength=5).tolist()
    assert sum(count > 0 for count in kept) == 3
    assert all(count in (0, full) for count, full in zip(kept, (2, 20, 40, 5, 6), strict=True))
    assert len(store.task[few].unique()) == 2
    assert set(few.tolist()) < set(more.tolist())
    assert torch.equal(sampled_tasks(store, index, 1.0, seed=1), index)


def store_of(*latencies):
    rng = np.random.default_rng(0)
    return ProgramTable.build(
        TaskPrograms.of(
            synthetic.key(str(i)),
            synthetic.features(rng, len(latency_s)),
            np.array(latency_s),
            np.arange(len(latency_s)),
        )
        for i, latency_s in enumerate(latencies)
    )


def test_crowded_labels_are_thinned_and_sparse_ones_kept():
    # Labels 1, eight times about 0.9, then 0.5, 0.2, 0.1: half of twelve is six.
    labels = np.array([1.0, *np.linspace(0.900, 0.907, 8), 0.5, 0.2, 0.1])
    kept = spread(store_of(1 / labels), torch.arange(12), 0.5, seed=0).tolist()
    assert {0, 9, 10, 11} <= set(kept)
    assert len(kept) == 6
    assert len(set(kept) & set(range(1, 9))) == 2


def test_every_task_keeps_its_share_and_its_best_whatever_the_seed():
    rng = np.random.default_rng(1)
    store = store_of(*(rng.lognormal(size=n) for n in (40, 3, 1, 101)))
    index = torch.arange(store.num_programs)[torch.randperm(145)]
    for seed in range(20):
        kept = spread(store, index, 0.55, seed)
        assert torch.equal(kept, kept.unique())
        per_task = torch.bincount(store.task[kept], minlength=4).tolist()
        assert per_task == [22, 2, 1, 56]
        assert (store.label[kept] == 1).sum() == 4
    assert torch.equal(spread(store, index, 1.0, 0), index)


def test_only_programs_of_the_index_are_kept_and_the_seed_decides_which():
    store = store_of(np.arange(1.0, 31.0))
    index = torch.arange(10, 30)
    kept = spread(store, index, 0.3, 0)
    assert set(kept.tolist()) <= set(index.tolist())
    assert len(kept) == 6
    assert 10 in kept  # the best of those given
    store = store_of(np.linspace(1, 1.01, 50))
    draws = [spread(store, torch.arange(50), 0.2, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_programs_that_failed_can_be_learnt_from_and_judge_nobody():
    store = store_of([2.0, np.inf, 1.0], [np.inf, 3.0], [1.0, np.inf, 4.0])
    assert store.label.tolist() == [0.5, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.25]
    first, second, third = store.keys
    split = TaskSplit(name="x", seed=0, train=(first,), valid=(second,), test=(third,))
    sides = {side: index.tolist() for side, index in divide(store, split).items()}
    assert sides == {"train": [0, 1, 2], "valid": [4], "test": [5, 7]}


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
