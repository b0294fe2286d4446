"""``pruner predict networks=``: a list or a generator in, a table out, and a limit."""

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


@pytest.fixture
def drafts_here(monkeypatch):
    from pruner.tune.networks.draft_task import Depth
    from pruner.tune.networks.filtering.forecaster import NetworkForecaster

    by_default = NetworkForecaster.__init__.__kwdefaults__
    monkeypatch.setitem(by_default, "depth", Depth(sample=32, rounds=0))
    return use_no_processes(monkeypatch)


def test_a_generator_becomes_a_table_that_a_limit_filters(door, drafts_here, tmp_path):
    words = ["predict", f"networks={SPACES}:two"]
    found, err = door(*words, "out=all.csv").done
    table = pd.read_csv(tmp_path / "all.csv")
    assert table.network.tolist() == ["first", "second"]
    assert table.eval("0 < low_s <= predicted_s <= high_s").all()
    assert table.flops.gt(0).all()
    assert "kept" not in table
    assert (found["num_networks"], found["num_forecast"], found["num_kept"]) == (2, 2, None)
    assert found["num_drafted"] == drafts_here.drafted == table.drafted.sum()
    assert found["unsuccessful"] == []

    # between the low ends of both; the second network has a layer more
    low, high = sorted(1e3 * table.low_s)
    found, err = door(*words, "out=kept.csv", f"below_ms={(low + high) / 2!r}").done
    again = pd.read_csv(tmp_path / "kept.csv")
    assert again.kept.tolist() == [True, False]
    same = ["network", "low_s", "predicted_s", "high_s", "flops", "parameter_bytes"]
    pd.testing.assert_frame_equal(again[same], table[same])
    assert (found["num_kept"], found["num_drafted"]) == (1, 0)
    assert found["num_known"] == drafts_here.drafted
    assert "1 of 2 networks may take" in err


def test_a_list_has_a_row_for_each_line_and_names_what_is_refused(door, drafts_here, tmp_path):
    small = "tests.tune.networks.small_networks"
    (tmp_path / "nets.txt").write_text(f"{small}:faint\n{small}:broken\n{small}:sized batch=4\n")
    code, _, err = door("predict", "networks=nets.txt", "out=s.csv")
    assert code == 3, err  # a network has no forecast
    table = pd.read_csv(tmp_path / "s.csv")
    assert table.network.tolist() == [f"{small}:faint", f"{small}:broken", f"{small}:sized batch=4"]
    assert table.predicted_s.isna().tolist() == [False, True, False]
    assert "the factory must return" in table.reason[1]
    # 4 rows of 16 numbers by 8 weights each
    assert table.flops[2] >= 2 * 4 * 16 * 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["networks=resnet19"], "network=resnet19 is unknown"),
        (["networks=no_such_package:f"], "networks=no_such_package:f: no such package"),
        (["networks=[]"], "give a file"),
        (["networks=resnet18", "checkpoint=cpu"], "leave checkpoint= out"),
        (["networks=resnet18", "out=."], "out=.: a folder; name a file in it, such as results.csv"),
        (["networks=resnet18", "layout=CHWN"], "layout=CHWN: choose"),
        (["networks=resnet18", "below_ms=-1"], "below_ms=-1: it must be a number above 0"),
        (["networks=resnet18", "candidates=0"], "candidates=0: it must be a whole number"),
        (["networks=resnet18", "platform=opencl"], "networks are not built for OpenCL"),
        (["networks=resnet18", "platform=rtx4090"], "platform=rtx4090: there is no forecast"),
        (["networks=resnet18", "seconds=false"], "leave seconds= out: networks= forecasts"),
        (["networks=resnet18", "models.own=[a.B]"], "leave models.own= out: "),
        (["networks=resnet18", "data.duplicates=drop"], "leave data.duplicates= out: "),
        (["below_ms=3"], "leave below_ms= out: it is an option of networks="),
        (["seed=1", "checkpoint=cpu"], "leave seed= out: it is an option of networks="),
    ],
)
def test_wrong_words_are_refused_in_a_line_before_any_work(words, message, door, tmp_path):
    err = door("predict", *words).refusal
    assert message in err
    assert len(err.strip().splitlines()) == 1, err
    assert not (tmp_path / "outputs" / "predict").exists()


def test_an_error_of_the_generator_leaves_the_finished_rows(door, drafts_here, tmp_path):
    err = door("predict", f"networks={SPACES}:failing", "out=s.csv").refusal
    assert "RuntimeError: no more layers" in err
    assert "s.csv has the finished forecasts" in err
    assert pd.read_csv(tmp_path / "s.csv").network.tolist() == ["first"]


def test_ctrl_c_leaves_the_finished_rows(door, drafts_here, tmp_path, monkeypatch):
    from pruner.tune.networks.filtering.forecaster import NetworkForecaster

    finish = NetworkForecaster._finish

    def interrupted(self, one, *rest):
        if one.name == "second":
            raise KeyboardInterrupt
        return finish(self, one, *rest)

    monkeypatch.setattr(NetworkForecaster, "_finish", interrupted)
    code, _, err = door("predict", f"networks={SPACES}:two", "out=s.csv", "below_ms=1000")
    assert code == 130, err
    table = pd.read_csv(tmp_path / "s.csv")
    assert table.network.tolist() == ["first"]
    assert table.kept.all()


@pytest.mark.slow
def test_processes_give_the_same_table(door, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        use_no_processes(patched)
        code, _, err = door("predict", f"networks={SPACES}:one_is_refused", "out=here.csv")
        assert code == 3, err
    words = [f"networks={SPACES}:one_is_refused", "out=there.csv", "drafts=null"]
    code, _, err = door("predict", *words)
    assert code == 3, err
    here, there = (pd.read_csv(tmp_path / name) for name in ("here.csv", "there.csv"))
    pd.testing.assert_frame_equal(here.drop(columns="seconds"), there.drop(columns="seconds"))


def test_a_module_has_the_numbers_of_the_command_and_stays_as_it_is(door, monkeypatch, tmp_path):
    drafts = use_no_processes(monkeypatch)
    assert door("predict", f"networks={SPACES}:two", "candidates=1", "out=s.csv").done
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
    use_no_processes(monkeypatch)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PrunerError, match="network=Branches: ") as refused:
        pruner.forecast(small_networks.Branches(), torch.ones(2))
    assert "\n" not in str(refused.value)
    with pytest.raises(PrunerError, match="platform=nothing is unknown"):
        pruner.Forecaster("nothing")
    with pytest.raises(PrunerError, match="layout=x: choose"):
        pruner.forecast(nn.Linear(2, 2), torch.ones(2), options=["layout=x"])
    for word in ("below_ms=3", "candidates=2", "checkpoint=cpu", "out=s.csv", "data.root=DIR"):
        with pytest.raises(PrunerError, match=f"leave {word.partition('=')[0]}= out: "):
            pruner.Forecaster(options=[word])
