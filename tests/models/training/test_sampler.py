import pytest
import torch

from pruner.models.training.sampler import EpochSampler, MixedBatches, TaskBatches

TASK = torch.tensor([0] * 100 + [3] * 37 + [7] * 5 + [8])
INDEX = torch.arange(1000, 1000 + len(TASK))
PLANS = {"mixed": MixedBatches(programs=16), "task": TaskBatches(tasks=3, programs=10)}


@pytest.mark.parametrize("name", PLANS)
def test_an_epoch_visits_every_program_once(name):
    sampler = EpochSampler(PLANS[name], INDEX, TASK, seed=1)
    batches = list(sampler)
    assert len(batches) == len(sampler)
    assert sorted(torch.cat(batches).tolist()) == INDEX.tolist()


@pytest.mark.parametrize("name", PLANS)
def test_epochs_differ_and_repeat_exactly(name):
    def epoch(seed, number):
        sampler = EpochSampler(PLANS[name], INDEX, TASK, seed=seed)
        sampler.set_epoch(number)
        return torch.cat(list(sampler)).tolist()

    assert epoch(0, 5) == epoch(0, 5)
    assert epoch(0, 5) != epoch(0, 6)
    assert epoch(0, 5) != epoch(1, 5)


@pytest.mark.parametrize("name", PLANS)
def test_processes_share_the_epoch_without_overlap(name):
    single = list(EpochSampler(PLANS[name], INDEX, TASK, seed=2))
    parts = [
        list(EpochSampler(PLANS[name], INDEX, TASK, seed=2, rank=r, world_size=3)) for r in range(3)
    ]
    assert len({len(part) for part in parts}) == 1
    together = {tuple(batch.tolist()) for part in parts for batch in part}
    assert together <= {tuple(batch.tolist()) for batch in single}
    assert len(together) == len(single) // 3 * 3


def test_task_lists_have_equal_sizes():
    for batch in TaskBatches(tasks=1, programs=10).epoch(TASK, torch.Generator().manual_seed(0)):
        assert len(TASK[batch].unique()) == 1
        assert len(batch) in (1, 5, 9, 10)  # 1, 5, 37 in 4 lists of 9 or 10, 100 in 10 of 10


def test_a_list_of_one_is_refused():
    with pytest.raises(ValueError, match="at least 2"):
        MixedBatches(programs=1)
