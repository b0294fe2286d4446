"""Every preset of ``conf/policy`` that is made for live tuning starts, proposes and goes on."""

import numpy as np
import pytest

from pruner.places import conf_folder
from pruner.search.policy import RoundSettings

pytestmark = pytest.mark.tvm
RIVALS = {"ansor_tvm", "metaschedule"}  # bring their own search: tests/cli/test_tune.py
PRESETS = sorted(path.stem for path in (conf_folder() / "policy").glob("*.yaml"))


@pytest.fixture(scope="module")
def analyzer():
    from pruner.models.analyzer.analyzer import load_analyzer

    return load_analyzer(conf_folder(), "a100")


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in RIVALS])
def test_a_preset_proposes_legal_new_programs_round_after_round(tmp_path, analyzer, preset):
    from hydra import compose, initialize_config_dir

    from pruner.cli.shared.options import build
    from pruner.program.device import load_device
    from pruner.tune.measure.machine import make_platform
    from pruner.tune.measure.measurer import MeasureSettings, Outcome
    from pruner.tune.phases import Phases
    from pruner.tune.run.database import Database
    from pruner.tune.run.learning import TreeModel
    from pruner.tune.run.options import RunContext, TuneOptions
    from pruner.tune.run.setup import prepare
    from pruner.tune.workloads import operator

    if preset == "adatune":
        pytest.importorskip("lightgbm")
    with initialize_config_dir(str(conf_folder()), version_base="1.3"):
        policy = build(compose("tune", [f"policy={preset}"]).policy)
    options = TuneOptions(
        platform=make_platform(load_device(conf_folder() / "platform" / "a100.yaml")),
        policy=policy,
        measure=MeasureSettings(check=False, baseline=False),
        analyzer=analyzer,
        make_model=(lambda: TreeModel(seed=0, num_rounds=3)) if policy.takes_model else None,
    )
    context = RunContext(
        platform=options.platform, measurer=None, phases=Phases(), database=Database(tmp_path),
        folder=tmp_path, tell=lambda _: None,
    )  # fmt: skip
    (task,) = prepare([operator("matmul", m=128, n=128, k=128)], options, context).tasks
    seen = set()
    for _ in range(2):
        candidates = task.search.propose(8)
        assert len(candidates) == 8
        latency_s = [1e-3 * (1 + np.abs(np.sin(c.decisions)).sum()) for c in candidates]
        task.search.observe(candidates, [Outcome(costs_s=(float(s),)) for s in latency_s])
        seen |= {(c.space, *c.decisions.tolist()) for c in candidates}
    assert len(seen) == 16
    assert context.phases.seconds()["train"] > 0 or not policy.takes_model


def test_the_sizes_of_the_presets_are_those_of_their_sources():
    """docs/paper.md: 512 drafted of five generations; the release: 1,536, two generations."""
    from hydra import compose, initialize_config_dir

    from pruner.cli.shared.options import build

    def preset(name):
        with initialize_config_dir(str(conf_folder()), version_base="1.3"):
            return build(compose("tune", [f"policy={name}"]).policy)

    assert preset("pruner_official") == RoundSettings()
    paper = preset("pruner_paper")
    assert (paper.draft.keep, paper.redraft_period, paper.verify_only_draft) == (512, 1, True)
