"""Tables of a campaign from fabricated runs, by hand; a folder that was left anywhere is read."""

import json
import math
import tarfile
from dataclasses import replace

import pandas as pd
import pytest

from experiments.gpu.options import SMALL, CampaignOptions
from experiments.gpu.results import compiled_counts, write_results
from experiments.gpu.tables import (
    beside_rows,
    curve_rows,
    group_rows,
    network_rows,
    operator_rows,
)
from pruner.files import write_json
from pruner.tune.pools.measurement_log import MeasurementLog
from pruner.tune.pools.records import about_pool
from tests.study.network.fabricated import contender, fabricate, trial

# task, latency, seconds since the start
OURS = [("a", 4.0, 1.0), ("b", 2.0, 2.0), ("a", 1.0, 3.0), ("b", 1.0, 4.0)]
RIVAL = [("a", 2.0, 10.0), ("b", 4.0, 20.0), ("b", 1.0, 30.0)]


@pytest.fixture
def options(tmp_path):
    return CampaignOptions(out=tmp_path, platform="h200", size=SMALL)


def ran(folder, rows, total_s, *, compiled_only=False, seconds=None):
    folder.mkdir(parents=True)
    trials = [trial(n, *row) for n, row in enumerate(rows, 1)]
    if compiled_only:
        trials = [{**row, "costs_s": [], "compiled_only": True} for row in trials]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trials))
    write_json(folder / "metrics.json", {"total_seconds": total_s, "seconds": seconds or {}})
    return folder


@pytest.fixture
def both(options):
    ran(options.run("float32-ours"), OURS, 5.0)
    ran(options.run("float32-metaschedule"), RIVAL, 31.0)
    return options


def test_operators_groups_and_curves_of_both(both):
    rows = {(row["task"], row["policy"]): row for row in operator_rows(both)}
    assert len(rows) == 4
    ours = rows["a", "ours"]
    assert (ours["trials"], ours["best_s"]) == (2, 1.0)
    # MetaSchedule tried a once; our first try of it took 4 s
    assert (ours["equal_trials"], ours["best_at_equal_s"]) == (1, 4.0)
    assert rows["b", "metaschedule"]["best_at_equal_s"] == 1.0
    assert ours["raced_s"] is None
    ours, rival = group_rows(both)
    # the rival ends with 2 + 1 s after 30 s; ours has 1 + 2 s after 3 s
    assert (rival["seconds_to_rival"], rival["times_less"], rival["over_rival"]) == (30.0, 1.0, 1.0)
    assert (ours["seconds_to_rival"], ours["times_less"]) == (3.0, 10.0)
    # at equal trials: of a 4 over 2, of b 1 over 1
    assert ours["over_rival"] == pytest.approx(math.sqrt(2.0))
    assert (ours["trials"], ours["total_s"]) == (4, 5.0)
    rows = {row["policy"]: [] for row in curve_rows(both)}
    for row in curve_rows(both):
        rows[row["policy"]].append((row["after"], row["elapsed_s"], row["relative"]))
    # ours: 4 + 2 s after two trials, 1 + 1 s after four, which is the best sum of any
    assert rows["ours"] == [(2, 2.0, 3.0), (4, 4.0, 1.0)]
    assert rows["metaschedule"] == [(2, 20.0, 3.0), (3, 30.0, 1.5)]


def test_latencies_over_those_of_chance_at_equal_trials(both):
    assert {row["over_random"] for row in [*operator_rows(both), *group_rows(both)]} == {None}
    ran(both.run("float32-random"), [("a", 8.0, 5.0), ("a", 1.0, 6.0), ("b", 1.0, 7.0)], 8.0)
    over = {(row["task"], row["policy"]): row["over_random"] for row in operator_rows(both)}
    # at one trial each: of a ours 4, MetaSchedule 2, chance 8; of b 2, 4 and 1
    assert (over["a", "ours"], over["b", "ours"]) == (4 / 8, 2 / 1)
    assert over["a", "metaschedule"] == 2 / 8
    assert over["a", "random"] == 1.0
    groups = {row["policy"]: row["over_random"] for row in group_rows(both)}
    # ours against chance alone: of a two trials each, 1 over 1; of b one each, 2 over 1
    assert groups["ours"] == pytest.approx(math.sqrt(2.0))
    assert groups["random"] == 1.0


def test_a_rival_that_is_not_through_yet_is_compared_where_it_was(options):
    ran(options.run("float32-ours"), OURS, 5.0)
    ran(options.run("float32-metaschedule"), RIVAL[:1], 11.0)  # has not begun b
    ours, rival = group_rows(options)
    # the rival has 2 s of a after 10 s; ours 1 s of a after 3 s
    assert (rival["seconds_to_rival"], ours["seconds_to_rival"]) == (10.0, 3.0)
    assert ours["over_rival"] == pytest.approx(2.0)  # a at one trial: 4 over 2
    assert len(curve_rows(options)) == 2  # of ours alone, once both ran


def test_who_never_gets_there_is_told_so(options):
    ran(options.run("float32-ours"), OURS[:2], 3.0)
    ran(options.run("float32-metaschedule"), RIVAL, 31.0)
    ours, _ = group_rows(options)
    assert (ours["seconds_to_rival"], ours["times_less"]) == (None, 0.0)


def test_a_network_meets_the_one_that_metaschedule_tuned(options):
    mine = [("conv_a", 4.0, 1.0), ("dense_b", 2.0, 2.0), ("conv_a", 1.0, 4.0)]
    theirs = [("conv_a", 2.0, 10.0), ("dense_b", 1.0, 20.0)]
    fabricate(options.run("bert_tiny-float16"), mine)
    fabricate(options.run("bert_tiny-float16-metaschedule"), theirs)
    found = [
        (r["group"], r["policy"], r["after"], r["elapsed_s"], r["sum_s"], r["relative"])
        for r in curve_rows(options)
    ]
    # once all tuned tasks have a program; conv_a is called twice: 2 * 4 + 2, then 2 * 1 + 2 = 4 s,
    # the least of both; theirs 2 * 2 + 1
    assert found == [
        ("bert_tiny-float16", "ours", 2, 2.0, 10.0, 2.5),
        ("bert_tiny-float16", "ours", 3, 4.0, 4.0, 1.0),
        ("bert_tiny-float16", "metaschedule", 2, 20.0, 5.0, 1.25),
    ]
    (row,) = network_rows(options)
    # 5 s after 20 s; ours has 4 s after 4 s
    assert (row["seconds_to_rival"], row["times_less"], row["over_rival"]) == (4.0, 5.0, 0.8)


def test_where_the_seconds_of_a_run_go(options):
    spent = {"sample": 1.0, "draft": 2.0, "verify": 3.0, "build": 10.0, "run": 4.0}
    ran(options.run("float32-ours"), OURS, 20.0, seconds=spent)
    ran(options.run("float32-metaschedule"), RIVAL, 31.0)  # has not ended
    fabricate(options.run("bert_tiny-float16"), [("conv_a", 1.0, 1.0)], total_s=40.0)
    ours, rival = group_rows(options)
    assert [ours[f"{name}_s"] for name in spent] == list(spent.values())
    assert ours["exploration_share"] == (1 + 2 + 3) / 20
    assert (ours["build_each_s"], ours["run_each_s"]) == (0.1, 0.1)  # of a trial, as before
    assert rival["draft_s"] is rival["exploration_share"] is None
    (network,) = network_rows(options)
    assert (network["build_s"], network["run_s"]) == (30.0, 10.0)


def test_ways_to_adapt_meet_the_model_that_begins_anew(options):
    ran(options.run("adaptation-scratch"), [("a", 2.0, 8.0)], 9.0)
    ran(options.run("adaptation-moa"), [("a", 2.0, 2.0)], 9.0)
    found = {row["policy"]: row["times_less"] for row in group_rows(options)}
    assert found == {"scratch": 1.0, "moa": 4.0}


def test_programs_that_were_only_compiled_are_counted(options):
    ran(options.run("float16-ours"), OURS, 5.0, compiled_only=True)
    (row,) = group_rows(options)
    assert (row["group"], row["trials"], row["compiled"], row["failed"]) == ("float16", 4, 4, 0)
    assert row["noise"] is None
    assert {(r["trials"], r["compiled"], r["best_s"]) for r in operator_rows(options)} == {
        (0, 2, None)
    }


def test_the_first_kernels_are_counted_too(options):
    ran(options.run("sanity"), OURS, 5.0)
    (row,) = group_rows(options)
    assert (row["group"], row["policy"], row["trials"]) == ("sanity", "ours", 4)
    assert operator_rows(options) == []
    only = replace(options, compile_only=True)
    ran(only.run("sanity"), OURS, 5.0, compiled_only=True)
    fabricate(only.run("bert_tiny-float16"), [("conv_a", 1.0, 1.0)])
    both = [contender("ours", 2.0), contender("eager", 5.0)]
    # of what ran there before
    keep(options, "bert_tiny-float16-beside", threads=2, reference="eager", contenders=both)
    path = only.run("bert_tiny-float16") / "trials.jsonl"
    row = {**trial(1, "conv_a", 1.0, 1.0), "costs_s": [], "compiled_only": True}
    path.write_text(json.dumps(row) + "\n")
    assert compiled_counts(only) == {"compiled": 4 + 1, "failed": 0}


def keep(options, name, **content):
    options.kept(name).parent.mkdir(exist_ok=True)
    write_json(options.kept(name), content)


def raced(ours_s, torch_s, **more):
    return [contender("ours", ours_s, **more), contender("eager", torch_s)]


def test_kernels_beside_torch_come_from_the_latest_comparison_that_reached_them(both):
    keep(both, "float32-beside", tasks={"a": raced(2.0, 4.0), "b": raced(1.0, 3.0)})
    # the finals were ended after the first task
    unfinished = both.run("float32-ours") / "kernels_beside.json"
    write_json(unfinished, {"tasks": {"a": raced(2.0, 5.0, watts=300.0, joules=600.0)}})
    rows = {(row["task"], row["contender"]): row for row in beside_rows(both)}
    assert rows["a", "eager"]["over_ours"] == 2.5
    assert rows["a", "ours"]["joules"] == 600.0
    assert rows["b", "eager"]["over_ours"] == 3.0
    found = {(r["task"], r["policy"]): r["over_torch"] for r in operator_rows(both)}
    assert found["a", "ours"] == 2.5
    assert found["a", "metaschedule"] is None  # it was not in that comparison


def test_what_was_asked_beside_is_in_the_same_tables(both):
    """AdaTune with the operators; a product with a long reduction beside torch."""
    ran(both.run("float32-adatune"), [("a", 2.0, 5.0), ("b", 1.0, 15.0)], 16.0)
    found = {row["policy"]: row["times_less"] for row in group_rows(both)}
    assert found == {"ours": 10.0, "metaschedule": 1.0, "adatune": 2.0}  # 2 + 1 s after 15 s
    ran(both.run("reduction-ours"), [("long", 2.0, 1.0)], 2.0)
    keep(both, "reduction-finals", tasks={"long": raced(2.0, 1.6)})
    over = {row["contender"]: row["over_ours"] for row in beside_rows(both)}
    assert over == {"ours": 1.0, "eager": 0.8}


def test_networks_with_their_contenders(options):
    folder = options.run("bert_tiny-float16")
    rows = [contender("ours", 2.0), contender("eager", 5.0)]
    trials = [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)]
    fabricate(folder, trials, contenders=rows)
    fabricate(options.run("bert_tiny-float32"), trials)
    found = network_rows(options)
    assert [(r["precision"], r.get("contender"), r.get("over_ours")) for r in found] == [
        ("float16", "ours", 1.0), ("float16", "eager", 2.5), ("float32", None, None),
    ]  # fmt: skip
    assert found[0]["estimate_s"] == 3.0  # conv_a is called twice


def test_a_comparison_of_networks_that_was_ended_leaves_the_one_before(options):
    folder = options.run("bert_tiny-float16")
    fabricate(folder, [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)])
    about = {"threads": 2, "reference": "eager"}
    first = [contender("ours", 2.0), contender("eager", 5.0)]
    keep(options, "bert_tiny-float16-beside", **about, contenders=first)
    # the finals began: they built the network, and beside.json of before is gone
    found = {row["contender"]: row for row in network_rows(options)}
    assert {name: row["over_ours"] for name, row in found.items()} == {"ours": 1.0, "eager": 2.5}
    used = {"watts": 300.0, "joules": 600.0}
    last = [contender("ours", 2.0, **used), contender("compile", 3.0, **used)]
    write_json(folder / "beside.json", {**about, "contenders": last})
    found = {row["contender"]: row for row in network_rows(options)}
    assert {name: row["over_ours"] for name, row in found.items()} == {
        "ours": 1.0, "eager": 2.5, "compile": 1.5,
    }  # fmt: skip
    assert (found["compile"]["watts"], found["ours"]["joules"]) == (300.0, 600.0)


def test_results_of_an_empty_folder_are_no_error(options, tmp_path):
    counts = write_results(options, tmp_path / "results")
    assert set(counts.values()) == {0}


def test_finished_pools_become_a_data_root_with_a_card(both, tmp_path):
    records = both.pools / "measure_records" / "h200"
    (both.pools / "design_spaces").mkdir(parents=True)
    records.mkdir(parents=True)
    (records / "matmul_8_8_8.json.gz").touch()
    none = about_pool(MeasurementLog(tmp_path / "ledger.jsonl"), {"platform": "h200"})
    found = {"valid": 3, "failed": 1, "unchecked": 2, "timings": 7, "spread_median": 0.01}
    assert found.keys() <= none.keys()  # as pruner collect writes them
    pools = [{**none, **found, "task": name} for name in ("matmul_8_8_8", "unfinished")]
    about = {"machine": {"processor": "p"}, "targets": {"h200": "t"}, "timing": {}, "pools": pools}
    write_json(both.pools / "about.json", about)
    assert write_results(both, tmp_path / "results")["records"] == 3
    card = (tmp_path / "results" / "records" / "README.md").read_text()
    assert "3 programs of 1 tasks" in card
    assert "| matmul_8_8_8 | 3 | 1 | 2 | 7 | 0.010 |" in card
    copied = tmp_path / "results" / "records" / "measure_records" / "h200"
    assert [path.name for path in copied.iterdir()] == ["matmul_8_8_8.json.gz"]


def test_one_file_brings_home_what_the_tables_are_made_from(both, tmp_path):
    (both.run("float32-ours") / "kernels").mkdir()
    (both.run("float32-ours") / "kernels" / "a.so").touch()
    results = tmp_path / "results"
    results.mkdir()
    (results / "of somebody else").touch()
    write_results(both, results)
    write_results(both, results)  # the archive is not in itself
    with tarfile.open(results / "campaign.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "home", filter="data")
    assert "tune/float32-ours/trials.jsonl" in names
    assert "results/operators.csv" in names
    assert "results/of somebody else" not in names
    assert not [name for name in names if name.endswith((".so", ".tar.gz", ".part"))]
    again = write_results(replace(both, out=tmp_path / "home"), tmp_path / "again")
    assert again["operators"] == 4
    tables = [path / "groups.csv" for path in (results, tmp_path / "again")]
    assert tables[0].read_text() == tables[1].read_text()


def test_the_book_reads_the_tables(both, tmp_path, repository):
    from pruner.study.book.items import load_item
    from pruner.study.book.page import build_page

    options = both
    keep(options, "float32-beside", tasks={"a": raced(2.0, 4.0), "b": raced(1.0, 3.0)})
    folder = options.run("bert_tiny-float16")
    others = [contender("ours", 2.0), contender("eager", 5.0, label="torch eager")]
    fabricate(folder, [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)], contenders=others)
    ran(options.run("float16-ours"), OURS, 5.0)
    ran(options.run("float16-metaschedule"), RIVAL, 31.0)
    for precision in ("float16", "float32"):
        ran(options.run(f"{precision}-random"), RIVAL, 31.0)  # chance, beside every factor
    write_results(options, tmp_path / "gpu")
    assert len(pd.read_csv(tmp_path / "gpu" / "operators.csv")) == 12
    page = build_page([load_item(repository / "experiments" / "gpu")], results=tmp_path)
    numbers = {one.number.name: one.value for _, one in page.numbers}
    # both kinds of operators: one number hid the other while they had one name
    assert [value for name, value in numbers.items() if "Speed-up to" in name] == [10.0] * 2
    assert len(page.drawings) == 2
