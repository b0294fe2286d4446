"""Our search inside TVM's tuning, without processes; which described device a target means."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.search.decision_search import decision_search
from pruner.search.explorer import ExplorerSettings
from pruner.search.policy import RoundSettings
from pruner.search.space import History
from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.metaschedule import search_strategy, session
from pruner.tune.metaschedule.session import outcomes, platform_of
from pruner.tune.spaces.design import design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator
from tests.tune.run.test_loop import SEEN, Listening
from tests.tune.targets import open_designs, target_of

pytestmark = pytest.mark.tvm


def cpu(mcpu="haswell"):
    return target_of({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})


def opened(module, target):
    ms = load_tvm().meta_schedule
    how = {"space_generator": "post-order-apply", "num_threads": 1, "rand_state": 1}
    context = ms.TuneContext(mod=module, target=target, **how)
    made = session.MetaScheduleSession(platform=None, analyzer=None, model=None, seed=0)
    task = session.MetaScheduleTask.of(context)
    return made.open(task, task.designs(context.generate_design_space())), context


def small():
    some = ExplorerSettings(population=48, generations=1, keep=32)
    return RoundSettings(draft=some, verify=some, random_sample=32, draft_leads=True)


def tune(module, folder, trials, *, fakes=None, target=None, batch=6, **options):
    """The programs that were measured, and the database."""
    from tests.tune.metaschedule.fakes import measuring, ms

    fakes = fakes or measuring()
    space = options.pop("space", "post-order-apply")
    tvm_seed = options.pop("tvm_seed", 7)
    database = ms.tune_tir(
        module, target or cpu(), str(folder), trials, num_trials_per_iter=batch, space=space,
        strategy=search_strategy(**{"policy": small(), "seed": 0, "model": None} | options),
        cost_model="none", num_tuning_cores=1, seed=tvm_seed, **fakes,
    )  # fmt: skip
    return [one.script() for one in fakes["builder"].modules], database


def said(folder):
    (log,) = (folder / "logs").glob("*task_scheduler.log")
    return log.read_text(encoding="utf-8")


def test_a_budget_is_spent_on_distinct_programs(module, tmp_path):
    programs, database = tune(module, tmp_path, 10, model="pacm")
    assert len(programs) == len(set(programs)) == len(database) == 10
    # one line of ours a round, no more
    assert said(tmp_path).count("[INFO] main: round") == 2
    assert "main: round 2, 4 candidates" in said(tmp_path)


def test_the_first_round_is_that_of_our_own_loop(module, tmp_path):
    analyzer = platform_analyzer(platform_of(cpu(), None, print))
    space = open_designs(design_spaces(module, cpu()), analyzer, name="main")
    rng = np.random.default_rng([3, *b"main"])
    ours = decision_search(space, small(), space.draft_score, None, rng).propose(8)
    theirs, _ = tune(module, tmp_path, 8, batch=8, seed=3)
    assert [one.schedule.mod.script() for one in ours] == theirs
    made = session.MetaScheduleSession(platform=None, analyzer=None, model=None, seed=3)
    assert made.analyzer(cpu(), print)


@pytest.mark.parametrize(("target", "apart"), [("nvidia/nvidia-h100", 0.2), (None, 0.0)])
def test_the_first_programs_of_a_gpu_lie_apart(module, tmp_path, monkeypatch, target, apart):
    seen, make = [], RoundSettings.make

    def noted(settings, *given):
        seen.append(settings.first_apart)
        return make(settings, *given)

    monkeypatch.setattr(RoundSettings, "make", noted)
    policy = replace(small(), first_apart=None)
    tune(module, tmp_path, 1, policy=policy, target=target and target_of(target))
    assert seen == [apart]


def test_seeds(module, tmp_path):
    first = tune(module, tmp_path / "a", 6, seed=None, tvm_seed=7)[0]
    assert tune(module, tmp_path / "b", 6, seed=None, tvm_seed=7)[0] == first
    assert tune(module, tmp_path / "c", 6, seed=None, tvm_seed=8)[0] != first


def test_what_a_database_has_counts_as_measured(module, tmp_path):
    first, _ = tune(module, tmp_path, 12, seed=1)
    again, database = tune(module, tmp_path, 12, seed=1)
    assert not set(first) & set(again)
    assert len(database) == 24
    assert "main: 12 programs of the database count as measured" in said(tmp_path)
    # the latencies, too: the best of before is where evolution starts from
    records = list(database.get_all_tuning_records())
    database.commit_tuning_record(records[0])  # a program that was measured twice counts once
    space, context = opened(module, cpu())
    history = History(space)
    task, known = session.MetaScheduleTask.of(context), SimpleNamespace(know=history.add)
    session.know_earlier(database, task, known, space)
    costs_s = [list(map(float, record.run_secs)) for record in records]
    latency_s = history.latency_s.tolist()
    assert latency_s == [np.inf if s[0] > 1e9 else s[0] for s in costs_s]
    assert np.inf in latency_s
    assert len(np.unique(history.keys)) == 24


@pytest.mark.slow
def test_records_of_another_target_do_not_count(module, tmp_path):
    first, _ = tune(module, tmp_path, 6, seed=1)
    other, _ = tune(module, tmp_path, 6, seed=1, target=cpu("skylake-avx512"))
    assert "count as measured" not in said(tmp_path)
    assert len(set(first) & set(other)) < 6  # another analyzer drafts other programs


def test_all_tasks_share_one_model(tmp_path):
    tvm = load_tvm().tvm
    functions = {
        f"f{k}": from_operator({"operator": "matmul", "m": 32, "n": 32, "k": k}).module["main"]
        for k in (16, 32)
    }
    SEEN.clear()
    tune(tvm.IRModule(functions), tmp_path, 24, model=Listening())
    assert len([one for one in SEEN if one[0] == "meet"]) == 2
    *_, (_, names, number) = [one for one in SEEN if one[0] == "learn"]
    assert sorted(name.partition("-")[0] for name in names) == ["f16", "f32"]
    assert number >= 12


def test_builders_that_never_start_blame_no_program(module, tmp_path):
    from tests.tune.metaschedule.fakes import measuring

    fakes = measuring(error="LocalBuilder: Timeout, killed after 30.0 seconds")
    first, _ = tune(module, tmp_path, 12, fakes=fakes)
    assert "LocalBuilder(initializer=warm_worker)" in said(tmp_path)
    assert len(first) == 12
    # nor do its records
    again, _ = tune(module, tmp_path, 6)
    assert "count as measured" not in said(tmp_path)
    assert again == first[:6]


def test_a_round_of_timeouts_alone_tells_of_no_program():
    ms = load_tvm().meta_schedule
    slow = ms.runner.RunnerResult(None, "LocalBuilder: Timeout, killed after 30.0 seconds")
    told = []
    assert not any(one.concerns_program for one in outcomes([slow] * 3, told.append))
    assert len(told) == 1
    assert all(one.concerns_program for one in outcomes([slow], told.append))
    other = ms.runner.RunnerResult([1e-3], None)
    assert all(one.concerns_program for one in outcomes([slow, slow, other], told.append))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("LocalBuilder: Timeout, killed after 30.0 seconds", "build_timeout"),
        ("LocalBuilder: An exception occurred\nRPCRunner: no", "build_error"),
        ("LocalRunner: Timeout, killed after 30 seconds", "run_timeout"),
        ("RPCRunner: An exception occurred", "run_error"),
    ],
)
def test_failures_of_programs_are_told_apart(message, kind):
    result = load_tvm().meta_schedule.runner.RunnerResult
    bad, good = outcomes([result(None, message), result([0.25, 0.75], None)], print)
    assert (bad.error, good.latency_s) == (kind, 0.5)


def test_a_space_that_the_engine_refuses_is_replayed(module, tmp_path):
    def schedule(sch):
        block = sch.get_sblock("C")
        i, _, _ = sch.get_loops(block)
        outer, inner = sch.split(i, sch.sample_perfect_tile(i, n=2, max_innermost_factor=64))
        sch.parallel(outer)
        sch.unroll(inner)

    programs, _ = tune(module, tmp_path, 12, space=schedule)
    assert "1 of 1 design spaces go through TVM's replay" in said(tmp_path)
    assert len(set(programs)) == len(programs) == 7  # all there are: 64 = 2 ** 6


def test_an_undescribed_target_and_an_unknown_model_end_in_one_line(module, tmp_path):
    arm = target_of({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2})
    with pytest.raises(PrunerError, match="no described device fits; platform= one of cpu"):
        tune(module, tmp_path, 4, target=arm)
    assert len(tune(module, tmp_path / "named", 4, target=arm, platform="cpu-avx2")[0]) == 4
    with pytest.raises(PrunerError, match="model=mlp: choose pacm, xgboost, None"):
        search_strategy(model="mlp")


def found(target, name=None):
    told = []
    return platform_of(target_of(target), name, told.append), told


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ({"kind": "llvm", "mcpu": "nehalem"}, "cpu-sse4"),
        ({"kind": "llvm", "mcpu": "haswell"}, "cpu-avx2"),
        ({"kind": "llvm", "mcpu": "znver3"}, "cpu-avx2"),
        ({"kind": "llvm", "mcpu": "sapphirerapids"}, "cpu-avx512"),
        ("nvidia/jetson-agx-orin-64gb", "orin"),
        ({"kind": "cuda", "arch": "sm_75"}, "t4"),
    ],
)
def test_a_device_is_found_by_its_instructions_or_architecture(target, name):
    platform, told = found(target)
    assert (platform.name, told) == (name, [])


@pytest.mark.parametrize(
    ("target", "name", "told"),
    [
        ("nvidia/nvidia-h100", "h100", "h100, h200"),  # its architecture is sm_90a
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, "cpu-sse4", "mcpu"),  # any processor
    ],
)
def test_a_choice_is_told(target, name, told):
    platform, (line,) = found(target)
    assert platform.name == name
    assert told in line


def test_a_choice_can_be_made_and_cores_are_those_of_the_target():
    assert found("nvidia/nvidia-h100", "h200")[0].name == "h200"
    platform, _ = found({"kind": "llvm", "mcpu": "haswell", "num-cores": 12})
    assert (platform.device, platform.cores) == ("cpu", 12)


@pytest.mark.parametrize(
    ("target", "name", "says"),
    [
        ({"kind": "llvm", "mcpu": "haswell"}, "a100", "platform=a100 describes no such device"),
        ({"kind": "cuda", "arch": "sm_120"}, None, "platform= one of a100"),
        ({"kind": "hexagon", "mcpu": "hexagonv68"}, None, "TVM's own strategy"),
    ],
)
def test_what_is_not_described_is_refused(target, name, says):
    with pytest.raises(PrunerError, match=says):
        found(target, name)
