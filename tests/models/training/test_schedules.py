"""Learning rates by hand."""

import pytest
import torch

from pruner.models.training.schedules import warmup_cosine


def test_warmup_cosine_by_hand():
    parameter = torch.nn.Parameter(torch.zeros(1))
    schedule = warmup_cosine(torch.optim.SGD([parameter], lr=2.0), 12, warmup=1 / 6, final=0.1)
    rates = []
    for _ in range(13):
        rates.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(2.0 * 1 / 2)
    assert rates[1] == rates[2] == pytest.approx(2.0)
    assert rates[7] == pytest.approx(2.0 * (0.1 + 0.9 / 2))  # half way of ten falling steps
    assert rates[12] == pytest.approx(2.0 * 0.1)
