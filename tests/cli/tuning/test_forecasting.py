"""``pruner.forecast``: the numbers of the command, for a module in memory."""

import pandas as pd
import pytest
import torch
from torch import nn

import pruner
from pruner.errors import PrunerError
from tests.tune.networks import small_networks
from tests.tune.networks.filtering.in_process import use_no_processes

pytestmark = pytest.mark.tvm
SPACES = "tests.tune.networks.filtering.spaces"


def test_a_module_has_the_numbers_of_the_command_and_stays_as_it_is(door, monkeypatch, tmp_path):
    drafts = use_no_processes(monkeypatch)
    code, _, err = door("predict", f"networks={SPACES}:two", "candidates=1", "out=s.csv")
    assert code == 0, err
    (row,) = pd.read_csv(tmp_path / "s.csv").to_dict("records")
    made = drafts.drafted
    network, (x,) = small_networks.faint()
    network.train()
    with pruner.Forecaster() as forecaster:
        found = forecaster(network, x)
    assert network.training
    assert drafts.drafted == made  # the command's drafts are on disk
    assert found.name == "Sequential"
    seconds = [row["low_s"], row["predicted_s"], row["high_s"]]
    assert found.forecast.seconds == pytest.approx(seconds, rel=1e-6)
    assert found.flops == row["flops"]
    other = pruner.forecast(network, x, options=["drafts=null", "seed=1"])
    assert other.flops == found.flops
    assert drafts.drafted == 2 * made


def test_what_cannot_be_forecast_is_an_error_of_one_line(monkeypatch, tmp_path):
    from tests.tune.networks.small_networks import Branches

    use_no_processes(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrunerError, match="network=Branches: ") as refused:
        pruner.forecast(Branches(), torch.ones(2))
    assert "\n" not in str(refused.value)
    with pytest.raises(PrunerError, match="platform=nothing is unknown"):
        pruner.Forecaster("nothing")
    with pytest.raises(PrunerError, match="layout=x: choose"):
        pruner.forecast(nn.Linear(2, 2), torch.ones(2), options=["layout=x"])
    for word in ("below_ms=3", "candidates=2", "checkpoint=cpu", "out=s.csv", "data.root=DIR"):
        with pytest.raises(PrunerError, match=f"leave {word.partition('=')[0]}= out: "):
            pruner.Forecaster(options=[word])
