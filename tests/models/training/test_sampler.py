from functools import partial

import pytest
import torch

from pruner.models.programs.loading import Share
from pruner.models.training.sampler import EpochSampler, MixedBatches, TaskBatches

TASK = torch.tensor([0] * 100 + [3] * 37 + [7] * 5 + [8])
INDEX = torch.arange(1000, 1000 + len(TASK))
PLANS = {"mixed": MixedBatches(programs=16), "task": TaskBatches(tasks=3, programs=10)}


@pytest.mark.parametrize("name", PLANS)
def test_an_epoch_has_every_program_once_and_repeats_exactly(name):
    sampler = EpochSampler(PLANS[name], INDEX, TASK, seed=1)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(torch.cat(batches).tolist()) == INDEX.tolist()

    def epoch(seed, number):
        sampler = EpochSampler(PLANS[name], INDEX, TASK, seed=seed)
        sampler.set_epoch(number)
        return torch.cat(list(sampler)).tolist()

    assert epoch(0, 5) == epoch(0, 5)
    assert epoch(0, 5) != epoch(0, 6)
    assert epoch(0, 5) != epoch(1, 5)


def test_processes_share_a_batch_without_overlap():
    for size in (1, 2, 7, 31):
        index = torch.arange(size) * 3
        parts = [Share(rank, 3)(index) for rank in range(3)]
        assert torch.equal(torch.cat(parts), index)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert [Share(rank, 3).bounds(size)[0] for rank in range(3)] == [
            sum(map(len, parts[:rank])) for rank in range(3)
        ]


MANY = torch.arange(40).repeat_interleave(torch.arange(40) % 7 + 20)


@pytest.mark.parametrize(
    "make", [partial(MixedBatches, programs=16), partial(TaskBatches, tasks=2, programs=10)]
)
def test_a_window_bounds_how_many_tasks_are_begun_and_not_ended(make):
    def most_at_once(window):
        plan = make(window=window)
        batches = plan.epoch(MANY, torch.Generator().manual_seed(0))
        assert sorted(torch.cat(batches).tolist()) == list(range(len(MANY)))
        assert len(batches) == plan.num_batches(MANY)
        present = [set(MANY[batch].tolist()) for batch in batches]
        alive = [
            {task for task in range(40) if any(task in p for p in present[: at + 1])}
            & {task for task in range(40) if any(task in p for p in present[at:])}
            for at in range(len(batches))
        ]
        return max(map(len, alive))

    assert most_at_once(None) > 20
    assert most_at_once(4) <= 4 + 3  # and what begins or ends inside the batch
    assert most_at_once(12) <= 12 + 3
    assert most_at_once(12) > most_at_once(4)


def test_with_a_window_of_one_a_task_is_over_before_the_next_begins():
    order = torch.cat(MixedBatches(programs=8, window=1).epoch(MANY, torch.Generator()))
    changes = (MANY[order][1:] != MANY[order][:-1]).sum()
    assert changes == 39
    assert not torch.equal(order, order.sort().values)


def test_without_a_window_the_order_is_that_of_the_plain_draw():
    generator = torch.Generator().manual_seed(5)
    wanted = torch.randperm(len(TASK), generator=generator)
    found = MixedBatches(programs=16).epoch(TASK, torch.Generator().manual_seed(5))
    assert torch.equal(torch.cat(found), wanted)


def test_task_lists_have_equal_sizes():
    for batch in TaskBatches(tasks=1, programs=10).epoch(TASK, torch.Generator().manual_seed(0)):
        assert len(TASK[batch].unique()) == 1
        assert len(batch) in (1, 5, 9, 10)  # 1, 5, 37 in 4 lists of 9 or 10, 100 in 10 of 10


def test_lists_of_one_and_windows_of_none_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        MixedBatches(programs=1)
    with pytest.raises(ValueError, match="window: got 0"):
        TaskBatches(window=0)
