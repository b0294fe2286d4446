"""experiments/live/run.py: what it would run, and the tables from fabricated cells."""

import json
import runpy
import shutil
from itertools import product

import numpy as np
import pandas as pd
import pytest

from experiments.common.comparison import Ended
from pruner.cli.shared.known import read_fields, read_words
from pruner.cli.shared.options import build
from pruner.data.workload import parse_workload
from pruner.errors import DataError, PrunerError
from pruner.files import write_json
from pruner.study.book.items import load_item
from pruner.study.book.page import build_page
from tests.paths import REPOSITORY
from tests.study.network.fabricated import fabricate, trial

SMALL = ("operators=[matmul,layer_norm]", "seeds=2", "targets=[cpu-avx512]", "trials=3")


@pytest.fixture(scope="module")
def item():
    return runpy.run_path(str(REPOSITORY / "experiments/live/run.py"))


@pytest.fixture
def options(item, tmp_path):
    return lambda *words: read_fields(
        item["Options"], [f"out={tmp_path / 'runs'}", f"results={tmp_path / 'live'}", *words]
    )


def cells(item, given, part):
    return {
        (c.target, c.workload, c.method, c.seed): c
        for c in item["LiveComparison"](given).cells(part)
    }


def finished(item, given, cell, latencies_s, every_s=1.0, **more):
    """A run whose trials end every so many seconds; a network's through `fabricate`."""
    folder = item["LiveComparison"](given).folder(cell)
    folder.mkdir(parents=True)
    rows = [trial(n, "t", s, n * every_s) for n, s in enumerate(latencies_s, 1)]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    seconds = {"draft": 4.0, "verify": 6.0, "run": 30.0}
    metrics = {"total_seconds": 40.0, "failed": 0, "trials": len(rows), "seconds": seconds, **more}
    write_json(folder / "metrics.json", metrics)
    return folder


def composed(step):
    return read_words(step.words[0].removesuffix(".py"), step.words[1:]).config


def steps_of(item, given):
    return {step.name: step for step in item["LiveComparison"](given).steps()}


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_every_command_has_options_that_exist(item, options, every):
    """One seed of everything, with every way to adapt: hydra composes each, policies are built."""
    given = options(
        "seeds=1",
        "operators=[depthwise_3x3]",
        "adaptations=[moa,finetune,distill,moa_official,moa_gentle,none]",
    )
    steps = steps_of(item, given)
    # rounds, adapted twice, offline, ablation, value, longer, systems; network, systems of it
    contenders = 9 + 6 + 7 + 3 + 2 + 1 + 1 + 4 + 9 + 4
    trainings, listing = 5, 1
    assert len(steps) == contenders + trainings + listing
    for name, step in list(steps.items())[::every]:
        config = composed(step)
        if step.words[0] != "tune.py" or step.kind == "list":
            continue
        assert config.measure.min_repeat_ms == 30, name
        assert config.measure.repeats == (6 if "-adatune-" in name else 3), name
        single = 800 if "-ansor-800-" in name else 200
        assert config.budget.trials == (1000 if config.network else single), name
        build(config.policy)


def settings_of(item, options, name):
    step = steps_of(item, options("seeds=1"))[f"cpu-avx512-matmul-{name}-200-0"]
    config = composed(step)
    return config, build(config.policy)


def test_the_papers_rounds_are_those_of_its_twin(item, options):
    config, rounds = settings_of(item, options, "pruner_paper")
    assert (rounds.draft.keep, rounds.draft.population, rounds.draft.generations) == (512, 2048, 4)
    assert (rounds.verify.generations, rounds.prior, config.budget.batch) == (0, 0.0, 10)
    assert (config.inputs.relative, config.inputs.scale) == (False, "max")
    assert (config.draft.form, config.online_fit._target_.rpartition(".")[2]) == (
        "hardware",
        "official_fit",
    )
    # without the draft PaCM scores the evolution, without PaCM the draft is measured
    without, evolution = settings_of(item, options, "pruner_paper_without_draft")
    assert evolution.draft is None
    assert evolution.verify.generations
    assert without.adaptation == config.adaptation
    without, rounds = settings_of(item, options, "pruner_paper_without_pacm")
    assert not without.verify
    assert rounds.draft.keep == 512


def test_what_is_left_out_is_nowhere(item, options):
    _, ours = settings_of(item, options, "pruner_live")
    _, without = settings_of(item, options, "pruner_live_without_draft")
    assert ours.draft is not None
    assert ours.prior > 0
    assert (without.draft, without.prior, without.draft_leads) == (None, 0, False)
    assert without.random_sample == ours.random_sample + ours.draft.keep
    assert without.verify == ours.verify
    for part in ("dataflow", "statement"):
        config, _ = settings_of(item, options, f"pruner_paper_without_{part}")
        used = {name: config.model[name] for name in ("use_dataflow", "use_statement")}
        assert used == {name: name != f"use_{part}" for name in used}


def test_models_of_avx2_go_elsewhere_and_wait_for_their_training(item, options):
    steps = steps_of(item, options("seeds=1"))
    moa = steps["cpu-sse4-layer_norm-moa-200-0"]
    (source,) = moa.needs
    assert moa.lacks == ["cpu-avx2-pacm-0"]
    assert composed(source).platform.name == "cpu-avx2"
    assert composed(source).keep == "last"
    config = composed(moa)
    assert config.platform.name == "cpu-sse4"
    assert config.checkpoint == str(source.leaves.parent)
    assert config.adaptation._target_.endswith("MomentumAdaptation")
    assert config.adaptation.fit is None  # so it is that of the rounds
    rounds = composed(steps["cpu-sse4-layer_norm-pruner_paper-200-0"])
    assert config.online_fit == rounds.online_fit
    offline = steps["cpu-avx512-matmul-tensetmlp-200-0"]
    assert offline.lacks == ["cpu-avx2-tensetmlp-0", "cpu-avx2-cpu-avx512-tensetmlp-0"]
    tuned = composed(offline.needs[-1])
    assert tuned.platform.name == "cpu-avx512"
    assert tuned.checkpoint == str(offline.needs[0].leaves.parent)
    assert composed(offline).checkpoint == str(offline.needs[-1].leaves.parent)
    assert composed(offline).adaptation._target_.endswith("Unchanged")


def test_a_checkpoint_is_compared_with_scratch_and_with_the_draft_alone(item, options):
    steps = steps_of(item, options("seeds=1", "parts=[value]"))
    step = steps["cpu-avx512-matmul-pretrained-200-0"]
    config, (training,) = composed(step), step.needs
    trained, rounds = composed(training), build(config.policy)
    assert config.checkpoint == str(training.leaves.parent)
    assert config.adaptation._target_.endswith("FineTune")
    assert (rounds.prior, rounds.draft_leads) == (0.0, False)
    assert (trained.data.platform, trained.model.residual) == ("all", True)
    scratch = composed(steps["cpu-avx512-matmul-pruner_live-200-0"])
    alone = composed(steps["cpu-avx512-matmul-pruner_live_without_pacm-200-0"])
    assert (scratch.checkpoint, scratch.verify, alone.verify) == (None, True, False)
    assert build(scratch.policy).draft == build(alone.policy).draft == rounds.draft


def test_the_tuned_workloads_are_none_that_the_source_learned_from(item):
    bundled = {
        parse_workload(pool["key"]).identity
        for pool in json.loads((REPOSITORY / "datasets/bundled/about.json").read_text())["pools"]
    }
    tuned = {
        "matmul": ["matmul_layer", 512, 512, 512],
        "conv2d_3x3": ["conv2d_layer", 1, 64, 56, 56, 64, 3, 3, 1, 1],
        "depthwise_3x3": ["depthwise_conv2d_layer", 1, 144, 28, 28, 3, 3, 1, 1],
        "layer_norm": ["layer_norm_layer", 512, 1024],
    }
    assert tuned.keys() == item["OPERATORS"].keys()
    assert not {parse_workload(json.dumps(key)).identity for key in tuned.values()} & bundled
    strided = ["depthwise_conv2d_layer", 1, 144, 28, 28, 3, 3, 2, 1]
    assert parse_workload(json.dumps(strided)).identity in bundled


def test_scratch_on_avx512_is_the_run_of_the_papers_rounds(item, options):
    given = options("seeds=1")
    steps = list(item["LiveComparison"](given).steps())
    paper = [step for step in steps if step.name == "cpu-avx512-matmul-pruner_paper-200-0"]
    assert len(paper) == 4  # rounds, adaptation, ablation, longer: one folder
    assert len({tuple(step.words) for step in paper}) == 1


def test_the_plan_counts_what_is_missing_at_the_speed_of_what_is_there(item, options, tmp_path):
    given = options("plan=true", "parts=[rounds]", "operators=[matmul]", "seeds=1",
                    "contenders=[ansor,metaschedule,random]")  # fmt: skip
    cell = cells(item, given, "rounds")["cpu-avx512", "matmul", "ansor", 0]
    finished(item, given, cell, [1.0])
    times = [{"name": "x", "kind": "rival", "size": 100, "seconds": 1800.0}]
    write_json(tmp_path / "runs" / "seconds.json", times)
    # 200 trials of MetaSchedule at the speed of those 100: an hour; chance 100 s by the guess
    assert item["run"](given) == {"steps": 2, "hours": round(1 + 100 / 3600, 2)}


def test_an_interrupted_cell_goes_on_and_is_in_no_table(item, options):
    given = options("parts=[rounds]", *SMALL)
    cell = cells(item, given, "rounds")["cpu-avx512", "matmul", "ansor", 0]
    folder = finished(item, given, cell, [2.0, 1.0], interrupted=True)
    (folder / "state.npz").touch()
    assert not item["LiveComparison"](given).finished()
    assert steps_of(item, given)[folder.name].words == ["tune.py", f"resume={folder}"]


def test_hours_end_it_and_a_failed_training_costs_its_rows(item, options, monkeypatch, capsys):
    began = []

    def run(comparison, step, share_s, limit_s):
        began.append((step.name, limit_s))
        return Ended(code=2, line="error: no such records")

    monkeypatch.setattr(item["LiveComparison"], "run", run)
    monkeypatch.setitem(item["run"].__globals__, "missing_flags", lambda _: [])
    given = options("parts=[offline]", "operators=[matmul]", "seeds=1", "hours=2")
    with pytest.raises(DataError, match="no finished cell"):
        item["run"](given)
    assert [name for name, _ in began] == ["cpu-avx2-tensetmlp-0", "cpu-avx2-pacm-0"]
    assert 7100 < began[0][1] <= 7200
    told = capsys.readouterr().err
    assert "cpu-avx512-matmul-tensetmlp-200-0: left out, not done: cpu-avx2-tensetmlp-0" in told


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("parts=[online]", "parts=online: unknown; known: rounds"),
        ("contenders=[tlp]", "contenders=tlp: TLP reads primitives"),
        ("targets=[v100]", "targets=v100: unknown; known: cpu-avx512, cpu-sse4"),
        ("home=cpu-avx2", "home=cpu-avx2: unknown; known: cpu-avx512, cpu-epyc, cpu-zen5"),
        ("adaptations=[ewc]", "adaptations=ewc: unknown; known: moa"),
        ("operators=[gemm]", "operators=gemm: unknown"),
        ("network=foo", "network=foo: unknown; known: "),
        ("parts=[value,value]", r"parts=\[value,value\]: a name stands twice"),
        ("operators=[]", r"operators=\[\]: name one or more of matmul"),
        ("contenders=[]", r"contenders=\[\]: name one or more"),
        ("trials=0", "trials=0: at least 1"),
        ("seeds=0", "seeds=0: at least 1"),
        ("hours=-3", "hours=-3: more than 0, or null"),
        ("plan=true parts=[value] contenders=[moa]", r"none of them is of parts=\['value'\]"),
    ],
)
def test_unknown_names_are_refused(item, options, word, told):
    with pytest.raises(PrunerError, match=told):
        item["run"](options(*word.split()))


def test_another_machine_is_at_home_or_told_before_anything_starts(item, options, monkeypatch):
    steps = steps_of(item, options("home=cpu-epyc", "seeds=1", "operators=[matmul]"))
    assert not [name for name in steps if "offline" in name or "avx512" in name]
    config = composed(steps["cpu-epyc-matmul-pretrained-200-0"])
    assert config.platform.architecture == "znver3"
    moa = {name: step.needs for name, step in steps.items() if name.endswith("-moa-200-0")}
    assert moa.keys() == {"cpu-epyc-matmul-moa-200-0", "cpu-sse4-matmul-moa-200-0"}
    assert {need.name for needs in moa.values() for need in needs} == {"cpu-avx2-pacm-0"}
    listing = steps["dcgan-tasks"]
    assert "platform=cpu-epyc" in listing.words
    with pytest.raises(PrunerError, match="no bundled records of home=cpu-epyc"):
        item["run"](options("home=cpu-epyc", "parts=[offline]"))
    check = item["run"].__globals__
    monkeypatch.setitem(check, "missing_flags", lambda _: ["avx512f"])
    with pytest.raises(PrunerError, match="this CPU lacks avx512f; known: cpu-epyc, cpu-zen5"):
        item["run"](options("seeds=1"))
    monkeypatch.setitem(check, "missing_flags", lambda target: [*target.cpu_flags])
    with pytest.raises(PrunerError, match="this CPU lacks avx2, fma; known: cpu-avx512, cpu-zen5"):
        item["run"](options("seeds=1", "home=cpu-epyc"))


def adapted(item, options, *words):
    """MoA is twice as fast as scratch after every trial but the first, with every pair; fine-tuning
    as fast in one of four and else a little slower."""
    given = options("parts=[adaptation]", "summary=true", *SMALL, *words)
    for (_, workload, method, seed), cell in cells(item, given, "adaptation").items():
        scale = 8.0 if workload == "matmul" else 1.0
        latencies = {
            "scratch": [4.0, 4.0, 2.0],
            "moa": [4.0, 2.0, 1.0],
            "finetune": [4.0, 2.0, 1.0] if (workload, seed) == ("matmul", 0) else [4.0, 2.0, 1.5],
            "distill": [4.0, 4.0, 4.0],
        }[method]
        every_s = 1.0 if method == "moa" else 10.0
        finished(item, given, cell, [scale * s for s in latencies], every_s)
    return given


def test_moa_against_the_others_with_p_values_trials_and_time(item, options, tmp_path):
    given = adapted(item, options)
    assert item["run"](given)["cells"] == 16
    tests = pd.read_csv(tmp_path / "live" / "tests.csv").set_index(["method", "other"])
    # all four signs agree: one of 16; the other way round all of them are at least as large
    assert tests.area_p["moa", "scratch"] == 1 / 16
    assert tests.area_p["scratch", "moa"] == 1.0
    assert tests.pairs["moa", "scratch"] == 4
    # log areas over (4, 4, 2) and (4, 2, 1): ln(32 / 8) / 3, and ln 2 in the end
    assert tests.area_gain["moa", "scratch"] == pytest.approx(np.log(4) / 3, abs=1e-5)
    assert tests.final_gain["moa", "scratch"] == pytest.approx(np.log(2), abs=1e-5)
    # one pair of four is equal: both of its signs count, 2 of 16
    assert tests.final_p["moa", "finetune"] == 2 / 16
    assert tests.final_low["moa", "finetune"] < tests.final_gain["moa", "finetune"]
    summary = pd.read_csv(tmp_path / "live" / "summary.csv").set_index(["workload", "method"])
    moa = summary.loc["matmul", "moa"]
    assert moa.against == "scratch"
    # scratch ends at 2 after 3 trials and 30 s; MoA is there after 2 trials, one second each
    assert (moa.trials_to, moa.seconds_to, moa.speedup) == (2, 2.0, 15.0)
    assert (moa.final_over, moa.final_latency_s, moa.seeds, moa.reached) == (0.5, 8.0, 2, 2)
    assert (moa.final_low, moa.final_high, moa.exploration_share) == (8.0, 8.0, 10 / 40)
    distill = summary.loc["layer_norm", "distill"]
    assert (distill.trials_to, distill.speedup, distill.reached) == (np.inf, 0.0, 0)
    curves = pd.read_csv(tmp_path / "live" / "results.csv")
    assert set(curves.final_relative_latency[curves.method == "scratch"]) == {2.0}


def test_ansor_of_the_rounds_stands_beside_moa(item, options, tmp_path):
    given = adapted(item, options, "parts=[rounds,adaptation]")
    ansor = cells(item, given, "rounds")["cpu-avx512", "layer_norm", "ansor", 1]
    finished(item, given, ansor, [4.0, 4.0, 2.0], 10.0)
    item["run"](given)
    summary = pd.read_csv(tmp_path / "live" / "summary.csv")
    (moa,) = summary[(summary.against == "ansor") & (summary.method == "moa")].itertuples()
    assert (moa.part, moa.workload, moa.seeds, moa.speedup) == ("adaptation", "layer_norm", 1, 15.0)


def test_runs_whose_folders_are_gone_stay_in_the_tables(item, options, tmp_path):
    given = adapted(item, options)
    item["run"](given)
    before = pd.read_csv(tmp_path / "live" / "summary.csv")
    shutil.rmtree(tmp_path / "runs")
    # nothing is lost unasked
    with pytest.raises(PrunerError, match="16 runs that are not in out=: keep_rows=true keeps"):
        item["run"](options("parts=[adaptation]", "summary=true", *SMALL))
    words = ("parts=[adaptation]", "keep_rows=true", *SMALL)
    assert item["run"](options("plan=true", *words))["steps"] == 0
    assert item["run"](options("summary=true", *words))["cells"] == 16
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "live" / "summary.csv"), before, rtol=1e-5)
    # a third seed is not there yet; those of the others are
    steps = steps_of(item, options(*words, "seeds=3"))
    assert {name[-2:] for name in steps} == {"-2"}
    # nor is a run of more trials
    steps = steps_of(item, options(*words, "trials=4"))
    assert len([name for name in steps if "-4-" in name]) == 16


def test_kept_runs_are_those_of_every_part_that_shares_them(item, options, tmp_path):
    """Scratch of adaptation is the paper's rounds, the same run in both tables."""
    item["run"](adapted(item, options))
    shutil.rmtree(tmp_path / "runs")
    words = ("parts=[rounds,adaptation]", "contenders=[pruner_paper]", "keep_rows=true", *SMALL)
    assert item["run"](options("plan=true", *words))["steps"] == 0
    item["run"](options("summary=true", *words))
    points = pd.read_csv(tmp_path / "live" / "points.csv").groupby(["part", "method"])
    of_run = ["workload", "seed", "trial", "best_s"]
    rounds = points.get_group(("rounds", "pruner_paper"))[of_run]
    scratch = points.get_group(("adaptation", "scratch"))[of_run]
    pd.testing.assert_frame_equal(*(x.reset_index(drop=True) for x in (rounds, scratch)))


def test_points_that_no_part_has_are_told(item, options, tmp_path):
    item["run"](adapted(item, options))
    path = tmp_path / "live" / "points.csv"
    path.write_text(path.read_text().replace("distill", "guess"))
    with pytest.raises(DataError, match="no part adaptation with guess"):
        item["run"](options("plan=true", "keep_rows=true"))


def test_as_fast_as_ansor_with_four_times_the_trials(item, options, tmp_path):
    given = options("parts=[longer]", "summary=true", "operators=[matmul]", "seeds=1", "trials=2",
                    "contenders=[ansor_longer,moa]")  # fmt: skip
    found = cells(item, given, "longer")
    longer = found["cpu-avx512", "matmul", "ansor_longer", 0]
    folder = finished(item, given, longer, [8.0, 8.0, 8.0, 4.0, 4.0, 4.0, 4.0, 2.0], 10.0)
    assert folder.name == "cpu-avx512-matmul-ansor-8-0"
    assert "budget.trials=8" in steps_of(item, given)[folder.name].words
    finished(item, given, found["cpu-avx512", "matmul", "moa", 0], [4.0, 2.2], 10.0)
    item["run"](given)
    summary = pd.read_csv(tmp_path / "live" / "summary.csv").set_index("method")
    # 2.2 over 2 s in the end, after 20 of 80 s
    assert summary.final_over["moa"] == pytest.approx(1.1)
    assert (summary.cost_share["moa"], summary.against["moa"]) == (0.25, "ansor_longer")
    # areas over two and over eight trials are not compared
    assert (tmp_path / "live" / "tests.csv").read_text().strip() == ""


def test_a_network_is_its_weighted_tasks_and_nothing_ran_is_told(item, options, tmp_path, capsys):
    given = options("parts=[network]", "summary=true", "seeds=1", "network=dcgan")
    found = cells(item, given, "network")
    ours = item["LiveComparison"](given).folder(found["cpu-avx512", "dcgan", "pruner_live", 0])
    fabricate(ours, [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)])
    rival = item["LiveComparison"](given).folder(found["cpu-avx512", "dcgan", "ansor", 0])
    fabricate(rival, [("conv_a", 2.0, 10.0), ("dense_b", 2.0, 20.0)])
    broken = item["LiveComparison"](given).folder(found["cpu-avx512", "dcgan", "random", 0])
    fabricate(broken, [("conv_a", 2.0, 10.0)])  # dense_b never ran
    item["run"](given)
    results = pd.read_csv(tmp_path / "live" / "results.csv")
    (row,) = results[(results.method == "pruner_live") & (results.against == "ansor")].itertuples()
    # conv_a is called twice: 2 + 1 s after 2 s, where Ansor has 4 + 2 s after 20 s
    assert (row.final_latency_s, row.seconds_to, row.speedup) == (3.0, 2.0, 10.0)
    assert "left out:" in capsys.readouterr().err
    assert "random" not in set(results.method)


def test_the_book_shows_it(item, options, tmp_path):
    item["run"](adapted(item, options, "targets=[cpu-avx512,cpu-sse4]"))
    page = build_page([load_item(REPOSITORY / "experiments" / "live")], results=tmp_path)
    numbers = {one.number.name: one for _, one in page.numbers}
    one = numbers["p that MoA is better than scratch, AVX2 to SSE4.2"]
    assert (one.value, one.chance) == (1 / 16, 0.5)
    one = numbers[
        "p that MoA is better than scratch, area under the curve, all pairs of all targets"
    ]
    assert (one.value, one.chance) == (1 / 256, 0.5)


def test_the_item_names_only_contenders_and_parts_that_there_are(item):
    book = load_item(REPOSITORY / "experiments" / "live")
    for number in book.numbers:
        where = number.where
        known = {*item["PARTS"][where["part"]], *item["BESIDE"].get(where["part"], [])}
        assert where["method"] in known
        assert where.get("other", where["method"]) in known
        if "against" in where:
            assert where["against"] in item["RIVALS"][where["part"]]
    for part, methods in item["PARTS"].items():
        known = {*methods, *item["BESIDE"].get(part, [])}
        assert set(item["RIVALS"][part]) <= known
    assert all(
        item["GUESSED_S"][kind] > 0
        for one, prefix in product(item["ROUNDS"].values(), ("", "network "))
        for kind in [f"{prefix}{one.kind}"]
    )
