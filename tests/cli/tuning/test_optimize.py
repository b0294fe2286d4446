"""``pruner.optimize``: five modules through the draft; the folder is that of a command."""

import json

import pytest
import torch
from torch import nn

import pruner
from pruner.cli.shared.door import command_config
from pruner.cli.shared.options import build
from pruner.cli.tuning.optimize import _exported
from pruner.errors import PrunerError
from tests.cli.tuning.modules import assert_alike, made
from tests.commands import python, ran
from tests.tune.unhurried import UNHURRIED

pytestmark = pytest.mark.tvm


def built_here(config, place):
    """In the place of the command's run: a library without schedules, built in this process."""
    from pruner.tune.deploy.build import build_here
    from pruner.tune.deploy.built_files import DEPLOY_FILE, LIBRARY
    from pruner.tune.networks.extraction import write_tasks
    from pruner.tune.networks.request import REQUEST, NetworkRequest
    from pruner.tune.networks.source import NetworkSource

    assert config.effort.trials_per_task == 0  # effort=draft
    source, target = NetworkSource(name=config.network), {"kind": "llvm", "num-cores": 1}
    NetworkRequest(source=source, target=target).save(place / REQUEST)
    write_tasks(place, keep=True)
    build_here(place, {}, place / LIBRARY, reference=False, threads=1)
    (place / DEPLOY_FILE).write_text(json.dumps({"median_s": 0.5}))
    (place / "report.html").touch()


SLOW = [("mlp", True), ("cnn", True), ("attention", True), ("depthwise", True), ("two", True)]
SLOW = [pytest.param(*pair, marks=pytest.mark.slow) for pair in SLOW]


@pytest.mark.parametrize(("name", "whole"), [("mlp", False), *SLOW])
@pytest.mark.usefixtures("quick_networks")
def test_a_module_becomes_a_network(name, whole, tmp_path, monkeypatch, capfd):
    """``whole``: with the command's run, which tests/cli/test_tune.py is about, too."""
    monkeypatch.chdir(tmp_path)
    if not whole:
        monkeypatch.setattr("pruner.cli.tuning.optimize.run", built_here)
    module, inputs = made(name)
    modes = [part.training for part in module.modules()]
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    network = pruner.optimize(module, inputs, effort="draft", progress=False)
    assert capfd.readouterr() == ("", "")
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert network.folder.parent.parts == ("outputs", "tune")
    assert network.report.name == "report.html"
    assert 0 < network.latency_s < 1
    module.eval()
    others = tuple(
        torch.randn_like(one) if one.is_floating_point() else one.flip(0) for one in inputs
    )
    for given in (inputs, others):
        with torch.no_grad():
            assert_alike(network(*given), module(*given))


def test_a_network_for_another_machine_is_built_and_told(tmp_path, monkeypatch):
    def elsewhere(config, place):
        (place / "network.so").touch()
        notes = ["a note", "compiled but not run: the device is behind a tracker"]
        (place / "deploy.json").write_text(json.dumps({"notes": notes}))

    monkeypatch.setattr("pruner.cli.tuning.optimize.run", elsewhere)
    module, inputs = made("mlp")
    with pytest.raises(PrunerError, match=r"run: compiled but .* behind a tracker; pruner\.load "):
        pruner.optimize(module, inputs, effort="draft", folder=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_commands_take_its_folder(tmp_path):
    module, inputs = made("cnn")
    folder = tmp_path / "run"
    before = pruner.optimize(
        module, inputs, effort="draft", folder=folder, threads=1, options=UNHURRIED
    )
    assert before.interface.threads == 1
    with pytest.raises(PrunerError, match="exists and is never overwritten"):
        pruner.optimize(module, inputs, effort="draft", folder=folder)
    found = ran("deploy", f"run={folder}", "baselines=[eager]")[0]
    assert {"ours", "eager"} == set(found["beside"])
    found = ran("tune.py", f"resume={folder}", "budget.trials=4")[0]
    assert found["trials"] == 4
    assert found["deployed"]["applied"] > 0
    module.eval()
    with torch.no_grad():
        assert_alike(pruner.load(folder / "network.so")(*inputs), module(*inputs))


@pytest.mark.slow
def test_trials_are_measured(tmp_path):
    module, inputs = made("mlp")
    options = ["verify=false", "measure.repeats=1", "measure.min_repeat_ms=1", *UNHURRIED]
    network = pruner.optimize(
        module, inputs, trials=4, folder=tmp_path / "run", options=options, progress=False
    )
    found = json.loads((network.folder / "metrics.json").read_text())
    assert found["trials"] == 4
    module.eval()
    with torch.no_grad():
        assert_alike(network(*inputs), module(*inputs))


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Returns(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return x, self.what


class Counter(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize(
    ("module", "given", "told"),
    [
        (Branch(), torch.ones(3), "torch.export does not take Branch .*write branches .*where"),
        (Returns({"n": 3j}), torch.ones(3), r"outputs\[1\]\['n'\] is of complex: a library takes"),
        (nn.Linear(3, 2), (torch.ones(3), 1j), r"inputs\[1\] is of complex: a library takes"),
        (nn.Linear(3, 2), torch.ones(3, device="meta"), r"input \[0\] is on meta: give module and"),
        (Counter(), torch.ones(3), "a second call of Counter .* keeps state"),
        (nn.Linear(3, 2), torch.ones(4), "torch.export does not take Linear"),
    ],
)
def test_a_module_that_cannot_be_taken_is_told_in_one_line(module, given, told, tmp_path):
    with pytest.raises(PrunerError, match=told) as refused:
        pruner.optimize(module, given, effort="draft", folder=tmp_path / "run", progress=False)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"effort": "much"}, "effort=much is unknown; known: draft, normal, quick, thorough"),
        ({"effort": "draft", "trials": 9}, "effort=draft measures nothing: leave budget.trials"),
        ({"layout": "HWNC"}, "layout=HWNC: choose auto, NCHW or NHWC"),
        ({"threads": 0}, "num-cores must be at least 1"),
        ({"options": ["sead=3"]}, "sead is unknown; did you mean seed"),
        ({"options": ["network=resnet50"]}, "leave network= out .* its module is the network"),
        ({"threads": 1, "options": ["target=host"]}, "leave target= out .* threads= chooses"),
        ({"options": ["list=true"]}, "leave list= out: optimize starts a new run"),
    ],
)
def test_options_are_those_of_the_command(words, told, tmp_path):
    module, inputs = made("mlp")
    with pytest.raises(PrunerError, match=told):
        pruner.optimize(module, inputs, folder=tmp_path / "run", progress=False, **words)


def test_inputs_keep_their_names_and_the_module_its_mode():
    module, inputs = made("two")
    program = _exported(module, (inputs, {}))
    assert list(program.graph_signature.user_inputs) == ["word", "image"]
    assert module.training


def test_efforts_are_the_commands_files():
    """One table, conf/effort: what `optimize` takes is what the command takes."""
    from pruner.tune.run.budget import Effort

    with command_config("tune", ["network=resnet18", "effort=quick"]) as config:
        assert build(config.effort) == Effort(trials_per_task=8, seconds=180, patience=8, trials=32)
        assert config.policy.verify.population == 128  # that of networks


def test_an_application_of_hydra_keeps_its_own_configuration():
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    before = GlobalHydra.instance().hydra, HydraConfig.instance().cfg
    for words in (["effort=quick"], ["effort=none"]):
        try:
            with command_config("tune", words):
                assert HydraConfig.initialized()
        except PrunerError:
            assert words == ["effort=none"]
        assert (GlobalHydra.instance().hydra, HydraConfig.instance().cfg) == before


def test_the_package_is_light():
    """Until something is used: neither torch nor TVM, nor pandas."""
    done = python("-c", "import pruner, sys; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not {"torch", "tvm", "hydra", "numpy", "pandas"} & set(done.stdout.split())
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        pruner.optimise  # noqa: B018
