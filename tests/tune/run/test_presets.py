"""Every preset of ``conf/policy`` that is made for live tuning starts, proposes and goes on."""

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from pruner.cli.shared.known import chosen
from pruner.cli.shared.options import build
from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.paths import conf_folder
from pruner.search.policy import RoundSettings
from pruner.tune.measure.measurer import Outcome
from pruner.tune.phases import Phases
from pruner.tune.run.budget import Effort
from pruner.tune.run.learning import TreeModel
from pruner.tune.run.tune_options import LIVE
from pruner.tune.workloads import operator
from tests.tune.some_slow import some_slow
from tests.tune.targets import platform_of, prepared

pytestmark = pytest.mark.tvm
RIVALS = {"ansor_tvm", "metaschedule"}  # bring their own search: tests/cli/test_tune.py
PRESETS = sorted(path.stem for path in (conf_folder() / "policy").glob("*.yaml"))


@pytest.fixture(scope="module")
def analyzer():
    return load_analyzer(conf_folder(), "a100")


def composed(preset):
    """The policy of a preset."""
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        return build(compose("tune", [f"policy={preset}"]).policy)


FAST = ("pool", "pruner_network", "random")  # pruner_live is pruner_network with larger numbers


@some_slow("preset", FAST, sorted({*PRESETS} - RIVALS - {*FAST}))
def test_a_preset_proposes_legal_new_programs_round_after_round(tmp_path, analyzer, preset):
    if preset == "adatune":
        pytest.importorskip("lightgbm")
    policy, phases, seen = composed(preset), Phases(), set()
    matmul, platform = operator("matmul", m=128, n=128, k=128), platform_of("a100")
    make_model = (lambda: TreeModel(seed=0, num_rounds=3)) if policy.takes_model else None
    given = {"analyzer": analyzer, "make_model": make_model, "phases": phases}
    (task,) = prepared(matmul, policy, tmp_path, platform, **given).tasks
    for _ in range(2):
        candidates = task.search.propose(8)
        assert len(candidates) == 8
        latency_s = [1e-3 * (1 + np.abs(np.sin(c.decisions)).sum()) for c in candidates]
        task.search.observe(candidates, [Outcome(costs_s=(float(s),)) for s in latency_s])
        seen |= {(c.space, *c.decisions.tolist()) for c in candidates}
    assert len(seen) == 16
    if preset == "pruner_network":  # its default on a GPU
        assert task.search._policy._settings.first_apart == 0.2
    assert phases.seconds()["train"] > 0 or not policy.takes_model


def test_presets_are_the_settings_of_python():
    """Of the release, and of `this_cpu`; tests/search/test_presets.py has sizes by name."""
    assert composed("pruner_official") == RoundSettings()
    assert composed("pruner_live") == LIVE


@pytest.mark.parametrize(
    ("name", "network", "alone"),
    [
        ("quick", (120, 180.0, 8), 32),
        ("normal", (300, None, 20), 64),
        ("thorough", (900, None, 40), 256),
    ],
)
def test_an_effort_says_what_a_budget_leaves_open(name, network, alone):
    effort = instantiate(chosen("effort", name))
    open_ = {"trials": None, "seconds": None, "patience": None, "batch": 16, "tolerance": 0.01}
    whole = effort.budget(open_, 15)
    assert (whole.trials, whole.seconds, whole.patience) == network
    single = effort.budget(open_, None)
    assert (single.trials, single.seconds, single.patience) == (alone, None, None)
    given = effort.budget({**open_, "trials": 7, "seconds": 3.0, "patience": 2}, 15)
    assert (given.trials, given.seconds, given.patience) == (7, 3.0, 2)


def test_only_the_draft_measures_nothing_and_has_no_budget():
    files = sorted((conf_folder() / "effort").glob("*.yaml"))
    silent = [f.stem for f in files if not instantiate(chosen("effort", f.stem)).measures]
    assert silent == ["draft"]
    draft = Effort(trials_per_task=0)
    draft.budget({"trials": None, "batch": 16}, None)
    with pytest.raises(PrunerError, match=r"leave budget\.trials= out"):
        draft.budget({"trials": 8}, None)
