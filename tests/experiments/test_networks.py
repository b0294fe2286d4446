"""experiments/networks/run.py: what it would run, and the tables from the cells there are."""

import pandas as pd
import pytest

from experiments.common.comparison import Ended
from pruner.cli.shared.known import read_fields
from pruner.errors import DataError, PrunerError
from pruner.files import read_table, write_json, write_table
from pruner.study.book.items import load_item
from pruner.study.book.page import build_page
from tests.study.network.fabricated import contender, fabricate

ONE = ("networks=[tiny]", "many_seeds=[]", "long=[]", "drafts=[]", "seeds=1")
OURS = [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)]
RIVAL = [("conv_a", 2.0, 10.0), ("dense_b", 2.0, 20.0)]


@pytest.fixture
def item(script):
    return script("networks")


@pytest.fixture
def options(item, tmp_path):
    return lambda *words: read_fields(
        item["Options"],
        [*ONE, f"out={tmp_path / 'networks'}", f"results={tmp_path / 'networks'}", *words],
    )


def listed(folder):
    tasks = folder / "networks" / "tune" / "tiny-tasks"
    tasks.mkdir(parents=True)
    write_json(tasks / "metrics.json", {"num_tuned": 7})


def finished(item, options, policy, trials, network_s, *, contenders=None):
    campaign = item["Campaign"](options)
    folder = campaign.folder("tiny", policy, 0)
    fabricate(folder, trials, contenders=contenders)
    write_json(folder / "deploy.json", {"median_s": network_s})
    if contenders is not None:
        campaign.race("tiny").parent.mkdir(exist_ok=True)
        (folder / "beside.json").rename(campaign.race("tiny"))
    return folder


def drafted(campaign):
    folder = campaign.draft("tiny", 0).leaves.parent
    fabricate(folder, OURS)
    deployed = {"tasks": 9, "median_s": 0.5, "relative_error": 1e-6, "size_bytes": 3_000_000}
    write_json(folder / "deploy.json", {**deployed, "load_s": 0.25, "seconds": {"build": 4.0}})


def prefixes(item, options):
    """Ours takes 9 s a run from the draft and 8 s, as the rival in the end, after 1 s of tuning."""
    campaign = item["Campaign"](options)
    draft = campaign.draft("tiny", 0)
    draft.leaves.parent.mkdir(parents=True, exist_ok=True)
    write_json(draft.leaves, {"total_seconds": 8.0})
    took = {"name": draft.name, "kind": "draft", "size": 1.0, "seconds": 10.0}
    write_json(options.runs / "seconds.json", [took])
    points = [
        {"whose": "ours", "t_s": t, "measured": n, "median_s": m, "rival_s": 8.0, "error": None}
        for t, n, m in ((0.0, 0, 9.0), (1.0, 1, 8.0))
    ]
    folder = campaign.folder("tiny", "metaschedule", 0)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "prefixes.json", {"rival": "x", "settled_s": 108.0, "points": points})


def test_all_policies_get_as_many_trials_as_there_are_tasks(item, options, tmp_path):
    listed(tmp_path)
    steps = {step.name: step for step in item["Campaign"](options()).steps()}
    # the tasks; the draft; tuned and built by all three; prefixes; beside others
    assert len(steps) == 10
    for policy in ("ours", "metaschedule-NHWC", "random"):
        words = steps[f"tiny-{policy}-20-0"].words
        assert "budget.trials=140" in words
        assert "budget.batch=16" in words
        assert "deploy=false" in words
    beside = steps["tiny-ours-20-0, beside others"].words
    compared = beside[-1].removeprefix("compare=[").removesuffix("]").split(",")
    assert [one.split("/")[-1] for one in compared] == [
        "tiny-metaschedule-NHWC-20-0",
        "tiny-random-20-0",
    ]


def test_steps_wait_for_what_they_need(item, options, tmp_path, monkeypatch, capsys):
    """MetaSchedule's run fails: it is not built, no prefixes, nothing beside it."""
    began = []

    def run(campaign, step, share_s, limit_s):
        began.append(step.name)
        if step.kind == "metaschedule":
            return Ended(code=2, line="error: no such policy")
        step.leaves.parent.mkdir(parents=True, exist_ok=True)
        write_json(step.leaves, {"num_tuned": 7, "total_seconds": 1.0})
        return Ended(code=0, line="{}")

    monkeypatch.setattr(item["Campaign"], "run", run)
    with pytest.raises(DataError):  # these cells hold no tasks
        item["run"](options())
    ours, rival = "tiny-ours-20-0", "tiny-metaschedule-NHWC-20-0"
    chance = "tiny-random-20-0"
    assert began == [
        *("tiny-tasks", "tiny-draft-0", ours, f"{ours}, built", rival),
        *(chance, f"{chance}, built"),
    ]
    told = capsys.readouterr().err
    assert f"{rival}: exit code 2: error: no such policy, 0 s" in told
    assert f"{rival}, built: left out, not done: {rival}" in told
    assert f"{ours}, prefixes: left out, not done: {rival}, built" in told


def test_the_plan_counts_what_is_missing_at_the_speed_of_what_is_there(item, options, tmp_path):
    given = options("plan=true")
    listed(tmp_path)
    finished(item, given, "ours", OURS, 1.0)
    times = [{"name": "x", "kind": "metaschedule", "size": 70, "seconds": 1800.0}]
    write_json(tmp_path / "networks" / "seconds.json", times)
    found = item["run"](given)
    # 140 trials of MetaSchedule at the speed of those 70: an hour; the rest are guesses: to draft
    # and to build (two of three) a minute each, prefixes ten, the comparison seven, 140 random
    # trials .7 s each
    assert found == {"steps": 7, "hours": round(1 + (3 + 10 + 7 + 140 * 0.7 / 60) / 60, 2)}


@pytest.mark.parametrize(
    ("words", "name", "layout"),
    [
        ((), "tiny-metaschedule-NHWC-20-0", "NHWC"),  # as ours on a CPU: equal layouts
        (("rival_layout=NCHW",), "tiny-metaschedule-20-0", "NCHW"),  # as TVM imports it
    ],
)
def test_the_rival_tunes_our_layout_unless_told_otherwise(item, options, words, name, layout):
    steps = {step.kind: step for step in item["Campaign"](options(*words)).steps()}
    assert steps["metaschedule"].name == name
    assert f"layout={layout}" in steps["metaschedule"].words
    assert not any(word.startswith("layout=") for word in steps["ours"].words)  # auto: NHWC


def test_a_run_races_the_rivals_of_both_layouts(item, options):
    steps = [
        {step.kind: step for step in item["Campaign"](options(*words)).steps()}
        for words in ((), ("rival_layout=NCHW",))
    ]
    for kind in ("prefixes", "beside"):
        ours, theirs = (found[kind] for found in steps)
        assert ours.made == theirs.made  # one command writes one file ...
        assert ours.leaves != theirs.leaves  # ... which is copied


def test_drafted_networks_are_built_and_compared_with_torch(item, options, tmp_path):
    given = options("summary=true", "drafts=[tiny,opt]")
    finished(item, given, "ours", OURS, 2.0)
    campaign = item["Campaign"](given)
    assert "sizes.layers=2" in campaign.draft("opt", 0).words
    drafted(campaign)
    item["run"](given)
    (row,) = pd.read_csv(tmp_path / "networks" / "drafts.csv").to_dict("records")
    assert (row["network"], row["tasks"], row["network_s"]) == ("tiny", 9, 0.5)
    assert (row["library_mb"], row["load_s"], row["build_s"]) == (3.0, 0.25, 4.0)
    alone = item["run"](options("summary=true", "networks=[]", "drafts=[tiny]"))
    assert (alone["cells"], alone["drafts"]) == (0, 1)


def test_no_picture_where_everybody_failed(item, options, tmp_path):
    given = options("summary=true")
    failed = [{"name": "eager", "label": "eager", "error": "no torch"}]
    finished(item, given, "ours", OURS, 2.0, contenders=failed)
    assert item["run"](given)["cells"] == 1
    assert not (tmp_path / "networks" / "networks.svg").is_file()


def test_the_tables_and_the_book_come_from_the_cells_there_are(item, options, tmp_path, repository):
    given = options("summary=true", "drafts=[tiny]")
    with pytest.raises(DataError, match="no finished cell"):
        item["run"](given)
    rival = finished(item, given, "metaschedule", RIVAL, 8.0)
    rows = [contender("ours", 2.0), contender("eager", 5.0), contender(rival.name, 8.0)]
    finished(item, given, "ours", OURS, 2.0, contenders=rows)
    drafted(item["Campaign"](given))
    prefixes(item, given)
    assert item["run"](given)["cells"] == 2
    table = pd.read_csv(tmp_path / "networks" / "summary.csv").set_index("policy")
    # an empty folder, import 2 s, draft 8 s; ours 1 s of tuning; the rival 2 + 108 s
    assert table.speedup["ours"] == 10.0
    assert table.network_over_rival["ours"] == 0.25
    others = pd.read_csv(tmp_path / "networks" / "contenders.csv").set_index("contender")
    assert others.over_ours.to_dict() == {"ours": 1.0, "eager": 2.5, "MetaSchedule": 4.0}
    text = (tmp_path / "networks" / "tables.md").read_text()
    assert "| tiny | ours | 1 | 2 | 0.7 | 9000.00 | 10 | 2000.00 | 11 | 10.00 | 0.25 |" in text
    curve = pd.read_csv(tmp_path / "networks" / "prefixes.csv")
    assert curve.over_rival.tolist() == [9 / 8, 1.0]
    assert "| tiny | 2000.00 | 5000.00 | 8000.00 |" in text
    drawn = (tmp_path / "networks" / "networks.svg").read_text()
    assert all(name in drawn for name in ("tiny", "eager", "MetaSchedule"))
    book = load_item(repository / "experiments" / "networks")
    page = build_page([book], results=tmp_path)
    numbers = {one.number.name: one.value for _, one in page.numbers}
    assert [value for name, value in numbers.items() if "time to its final" in name] == [10.0]
    assert len(page.drawings) == 3


@pytest.mark.parametrize("words", [["summary=true"], ["networks=[other]", "seeds=2"]])
def test_tables_that_would_lose_a_cell_are_refused_before_any_work(item, options, tmp_path, words):
    finished(item, options(), "ours", OURS, 2.0)
    kept = [{"network": "tiny", "policy": name, "seed": 0} for name in ("ours", "random")]
    write_table(tmp_path / "networks" / "results.csv", kept)
    with pytest.raises(PrunerError, match=r"lose its row of tiny \w+ 0; add results=DIR"):
        item["run"](options(*words))
    assert read_table(tmp_path / "networks" / "results.csv")[1]["policy"] == "random"
    assert not (tmp_path / "networks" / "summary.csv").exists()


def test_chance_has_its_own_row_and_seconds_to_the_rivals_estimate(item, options, tmp_path):
    given = options("summary=true")
    finished(item, given, "ours", OURS, 2.0)
    finished(item, given, "metaschedule", RIVAL, 8.0)
    prefixes(item, given)
    finished(item, given, "random", [("conv_a", 1.5, 30.0), ("dense_b", 2.5, 40.0)], 3.0)
    assert item["run"](given)["cells"] == 3
    table = pd.read_csv(tmp_path / "networks" / "results.csv").set_index("policy")
    # import 2 s and, for ours, the draft of 8 s; then 2, 20 and 40 s of the run
    found = table.estimate_to_rival_s.to_dict()
    assert found == {"ours": 12.0, "metaschedule": 22.0, "random": 42.0}
    summary = pd.read_csv(tmp_path / "networks" / "summary.csv").set_index("policy")
    assert summary.network_over_rival["random"] == 3 / 8


def test_the_draft_of_a_run_that_begins_with_it_is_no_part_of_its_start(item, options, tmp_path):
    """An empty folder, import 2 s; then 1 s of the run, in which it drafted, too."""
    given = options("summary=true")
    ours = finished(item, given, "ours", OURS, 2.0)
    prefixes(item, given)
    (ours / "drafted").mkdir()
    rows = [{"task": task, "how": "drafted"} for task in ("conv_a", "dense_b")]
    write_json(ours / "drafted" / "drafted.json", rows)
    item["run"](given)
    (row,) = pd.read_csv(tmp_path / "networks" / "results.csv").to_dict("records")
    assert (row["seconds_to_rival"], row["drafted_s"]) == (3.0, 10.0)
