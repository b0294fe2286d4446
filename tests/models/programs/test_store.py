import numpy as np
import pytest
import torch

from pruner.errors import DataError
from pruner.models.programs.assemble import sampled, sampled_tasks
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
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
