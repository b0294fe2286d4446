"""The leaderboard: frozen tracks, what a submission must be, its rank, and the committed page."""

import gzip
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import yaml

from pruner.data.frozen import FrozenSplit
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey
from pruner.data.workload import parse_workload
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.ranker import RandomRanker
from pruner.models.registry import ModelSpec
from pruner.study.leaderboard import load_tracks, programs_of
from tests.paths import REPOSITORY

BOARD = REPOSITORY / "leaderboard"
BUNDLED = REPOSITORY / "datasets" / "bundled"
SUBMISSION_FILE = {
    "model": "Mine",
    "authors": "Jane Doe",
    "source": "by hand",
    "learned_from": "nothing",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The files of the test workloads, and a task of each other side, which a split has to have."""
    root, tests = tmp_path_factory.mktemp("records"), FrozenSplit.load("bundled", 0).test
    others = ("matmul_64_512_256", "matmul_128_128_128")
    for file in RecordRoot(BUNDLED).task_files():
        with gzip.open(file.path) as lines:
            (workload_key, *_), *_ = json.loads(next(lines))["i"]
        other = file.platform == "cpu-sse4" and file.task in others
        if other or parse_workload(workload_key).identity in tests:
            path = root / "measure_records" / file.platform / file.path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(file.path)
    (root / "design_spaces").symlink_to(BUNDLED / "design_spaces")
    return root


@pytest.fixture(scope="module")
def _read():
    return {}


def _programs(read, root, track):
    key = root.path, track.name
    if key not in read:
        read[key] = programs_of(root, track)
    return read[key]


@pytest.fixture(scope="module")
def truth(records, _read):
    """Every test program of the CPU track with its latency, read from the records."""
    track = load_tracks(BOARD / "benchmark.yaml")["cpu-pools"]
    parts = [
        pd.DataFrame({"platform": t.key.platform, "task": t.key.task, "line": t.line,
                      "latency_s": t.latency_s})
        for t in _programs(_read, RecordRoot(records), track)
    ]  # fmt: skip
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def board(tmp_path):
    folder = tmp_path / "leaderboard"
    (folder / "entries").mkdir(parents=True)
    for name in ("benchmark.yaml", "README.md"):
        shutil.copy(BOARD / name, folder)
    return folder


@pytest.fixture
def submit(board, truth):
    def submit(name, score, form=None, **changes):
        entry = board / "entries" / name
        entry.mkdir()
        (entry / "entry.yaml").write_text(yaml.safe_dump({**SUBMISSION_FILE, **(form or {})}))
        table = truth.drop(columns="latency_s").assign(score=score, **changes)
        table.to_csv(entry / "scores-cpu-pools.csv.gz", index=False)
        return entry

    return submit


@pytest.fixture(autouse=True)
def _records_are_read_once(monkeypatch, _read):
    monkeypatch.setattr("pruner.study.leaderboard.programs_of", partial(_programs, _read))


@pytest.fixture
def run(command, records):
    def run(board, *options):
        return command("leaderboard", f"folder={board}", f"data.root={records}", *options)

    return run


def test_a_submission_is_judged_by_its_scores_alone(run, board, submit, truth):
    perfect = submit("perfect", -truth.latency_s)
    worst = submit("worst", truth.latency_s, {"notes": "the best there is"})
    result, err = run(board, f"entry={perfect}").done
    assert (result["rank"], result["of"]) == (1, 3)  # chance is one, too
    assert result["top1"] == result["top1_task_mean"] == result["pairwise_accuracy"] == 1.0
    result, err = run(board, f"entry={worst}").done
    assert result["rank"] == 3
    assert "| 3 | worst | Mine |" in err  # the table says the same
    shutil.copytree(worst, board / "perfect")  # elsewhere, with the name of an entry
    result, _ = run(board, f"entry={board / 'perfect'}").done
    assert (result["rank"], result["of"]) == (3, 4)
    # by hand: the slowest program of every task is taken
    groups = truth.groupby(["platform", "task"]).latency_s
    assert result["top1"] == pytest.approx(groups.min().sum() / groups.max().sum())
    assert result["top1_task_mean"] == pytest.approx((groups.min() / groups.max()).mean())
    assert result["pairwise_accuracy"] == pytest.approx(0, abs=1e-12)


def test_the_page_ranks_all_with_chance_and_is_checked(run, board, submit, truth):
    submit("worst", truth.latency_s, {"notes": "upside down"})
    submit("perfect", -truth.latency_s)
    assert "differs from the entries" in run(board, "check=true").refusal
    result, _ = run(board).done
    assert (result["entries"], result["best"]) == (2, "perfect")
    page, mark = (board / "README.md").read_text(), "<!-- cpu-pools: end -->"
    lines, other = page.split(mark)[0].splitlines(), page.split(mark)[1]
    rows = [line.split(" | ")[1] for line in lines if line.startswith(("| 1 ", "| 2 ", "| 3 "))]
    assert rows == ["perfect", "chance", "worst"]
    assert next(line for line in lines if "| upside down |" in line).startswith("| 3 | worst |")
    # the other track's place is left alone
    assert other == (BOARD / "README.md").read_text().split(mark)[1]
    assert run(board, "check=true")[0] == 0


def test_chance_is_the_mean_over_random_orders(run, board, submit, truth):
    rng = np.random.default_rng(0)
    found = []
    for number in range(6):
        entry = submit(f"r{number}", rng.random(len(truth)))
        found.append(run(board, f"entry={entry}")[1]["top1_task_mean"])
    run(board)
    page = (board / "README.md").read_text()
    row = next(line for line in page.splitlines() if "| chance |" in line)
    chance = float(row.split(" | ")[3])
    assert np.mean(found) == pytest.approx(chance, abs=4 * np.std(found) / 6**0.5)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda t: t.iloc[1:], "{few} rows, the track has {all} test programs"),
        (
            lambda t: pd.concat([t.iloc[1:], t.iloc[1:2]]),
            "its rows are not the {task} test programs",
        ),
        (lambda t: t.assign(line=t.line + 1), "its rows are not the"),
        (lambda t: t.assign(platform="v100"), "its rows are not the"),
        (lambda t: t.drop(columns="score"), "no column score"),
        (lambda t: t.assign(score="fast"), "must be numbers"),
        (lambda t: t.assign(score=np.inf), "must be numbers"),
        (lambda t: t.assign(score=["nan", *t.score.astype(str)[1:]]), "must be numbers"),
        (lambda t: t.assign(score=["NA", *t.score.astype(str)[1:]]), "must be numbers"),
    ],
)
def test_scores_that_are_not_the_tracks_are_one_line(run, board, submit, truth, spoil, told):
    entry = submit("mine", -truth.latency_s)
    path = entry / "scores-cpu-pools.csv.gz"
    spoil(pd.read_csv(path)).to_csv(path, index=False)
    err = run(board, f"entry={entry}").refusal
    task = (truth.groupby(["platform", "task"]).size()).iloc[0]
    assert told.format(few=f"{len(truth) - 1:,}", all=f"{len(truth):,}", task=task) in err


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"speed": 3}, "entry.yaml: unknown: speed; known: model, authors"),
        ({"authors": ""}, "authors must not be empty"),
        ({"fit_seconds": -1}, "fit_seconds=-1"),
        ({"memory_mb": "much"}, "memory_mb=much"),
        ({"notes": None}, "notes=None: a text"),
        ({"notes": "x | y\n| 1 | fake |"}, "notes stands in a table: one line without |"),
        ({"notes": "x\r1"}, "notes stands in a table: one line"),
        ({"model": "A | B"}, "model stands in a table: one line without |"),
        ({"learned_from": "a\nb"}, "learned_from stands in a table: one line"),
        ({"notes": "<!-- cpu-pools: end -->"}, "notes stands in a table: one line without |"),
        ("model: A\nsource: s\nlearned_from: n\n", "entry.yaml: missing: authors"),
        (
            "model: A\nfoo: 1\n",
            "missing: authors, source, learned_from; unknown: foo; known: model",
        ),
        ("[1, 2]\n", "entry.yaml: not a form; its fields: model, authors"),
        ("a: [\n", "entry.yaml: not YAML (while parsing"),
    ],
)
def test_a_form_that_lacks_or_forges_is_one_line(run, board, submit, truth, form, told):
    entry = submit("mine", -truth.latency_s, form if isinstance(form, dict) else None)
    if isinstance(form, str):
        (entry / "entry.yaml").write_text(form)
    err = run(board, f"entry={entry}").refusal
    assert told in err
    assert "__init__" not in err


def test_a_folder_whose_name_would_forge_a_row_is_refused(run, board, submit, truth):
    submit("a | b", -truth.latency_s)
    assert "the folder's name stands in a table: one line without |" in run(board).refusal


def test_a_broken_entry_of_others_is_told_and_left_out(run, board, submit, truth):
    mine = submit("mine", truth.latency_s)
    submit("perfect", -truth.latency_s)
    broken = submit("broken", -truth.latency_s, {"memory_mb": "a\nb"})
    result, err = run(board, f"entry={mine}").done
    assert (result["rank"], result["of"]) == (3, 3)  # perfect, chance, mine
    told = [line for line in err.splitlines() if "broken" in line]
    assert told == [
        f"left out of the ranking: {broken / 'entry.yaml'}: memory_mb=a b: a number, 0 or more, "
        "or null"
    ]
    page = (board / "README.md").read_text()
    err = run(board).refusal  # what writes the page fails on it
    assert "memory_mb=a b" in err
    assert (board / "README.md").read_text() == page


def test_a_missing_score_is_ranked_last(run, board, submit, truth):
    score = -truth.latency_s
    best = truth.groupby(["platform", "task"]).latency_s.idxmin()
    score[best] = np.nan
    result = run(board, f"entry={submit('mine', score)}")[1]
    assert result["top1"] < 1
    assert result["pairwise_accuracy"] < 1


def test_damaged_files_are_refused(run, board, submit, truth, records, tmp_path, monkeypatch):
    entry = submit("mine", -truth.latency_s)
    scores = entry / "scores-cpu-pools.csv.gz"
    packed = scores.read_bytes()
    spoilt = packed[:200] + b"\xff" * 50 + packed[250:]
    bomb = gzip.compress(b"platform,task,line,score\n" + b"0" * (1 << 20))
    monkeypatch.setattr("pruner.study.leaderboard.MAX_SCORES_BYTES", 1 << 20)
    for damaged in (gzip.compress(b"\x00\x01")[:12], spoilt, bomb):
        scores.write_bytes(damaged)
        err = run(board, f"entry={entry}").refusal
        assert err.splitlines()[-1].startswith(f"error: {scores}: not a table (")
    others = tmp_path / "records"
    shutil.copytree(records / "measure_records", others / "measure_records")
    for path in sorted((others / "measure_records" / "cpu-sse4").glob("*.gz")):
        text = gzip.decompress(path.read_bytes()).splitlines()
        path.write_bytes(gzip.compress(b"\n".join(text[1:]) + b"\n"))
    assert "are not those of the benchmark" in run(board, f"data.root={others}").refusal


@pytest.mark.slow
def test_a_draft_enters_by_one_command(board, records, monkeypatch, capsys, tmp_path):
    from pruner.cli.shared.door import run_door

    entry = board / "entries" / "draft"
    words = [f"folder={board}", f"data.root={records}", f"entry={entry}", "model=symbolic",
             "authors=Jane Doe", "source=this repository"]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    run_door("leaderboard", words)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["rank"], result["of"]) == (1, 2)  # ahead of chance
    form = yaml.safe_load((entry / "entry.yaml").read_text())
    assert form["model"] == "symbolic, hardware"
    assert "in view" in form["notes"]  # of the board's own rule
    assert form["scored_per_second"] > 0


ABOUT = CheckpointInfo(model=ModelSpec(name="PaCM"), feature_version="", dataflow="paper")


@pytest.fixture
def enter(run, board, tmp_path, monkeypatch):
    """Enter a checkpoint that says this of itself; also how often it came to scoring."""
    from pruner.cli import leaderboard

    scored, entry = [], board / "entries" / "learned"
    monkeypatch.setattr(leaderboard, "write_scores", lambda *_: scored.append(1))
    monkeypatch.setattr(leaderboard, "judged", lambda *_: {"top1_task_mean": 0.5})
    monkeypatch.setattr(leaderboard, "as_markdown", lambda *_: "")
    (tmp_path / "best.pt").touch()

    def enter(about, *options):
        monkeypatch.setattr(leaderboard, "ranker_of", lambda *_: (RandomRanker(), about))
        words = [f"entry={entry}", f"checkpoint={tmp_path / 'best.pt'}", "authors=J", "source=url"]
        code, _, err = run(board, *words, *options)
        form = entry / "entry.yaml"
        said = yaml.safe_load(form.read_text()) if form.is_file() else None
        return code, err, said, len(scored)

    return enter


# One of a larger model that does not say what it has seen, gone on with on known records.
GONE_ON = replace(
    ABOUT,
    seen_tasks={"cpu-sse4": ["matmul_64_512_256"]},
    lineage=[{"checkpoint": "old", "sha256": "", "says_seen": False}],
)


@pytest.mark.parametrize("about", [ABOUT, GONE_ON])
def test_a_model_of_unknown_records_is_entered_once_somebody_says_which(enter, about):
    code, err, _, scored = enter(about)
    assert code == 2
    assert "its training records are not listed" in err
    assert not scored  # before anything takes minutes
    code, err, form, _ = enter(about, "learned_from=TenSet")
    assert code == 0, err
    assert form["learned_from"] == "TenSet"


def test_a_model_that_learned_from_a_test_workload_is_refused(enter, truth):
    """Whatever the platform and the operators behind it, and whatever its maker says."""
    task = "conv2d_1_256_28_28_64_1_1_2_0"
    work = truth.task.nunique()  # none of them has two names
    assert task in set(truth.task)
    key = TaskKey(
        platform="k80",
        task="conv2d_relu_of_a_gpu",
        workload_key='["conv2d_layer",1,256,28,28,64,1,1,2,"VALID"]',
        target="cuda",
        fused=("relu",),
    )
    for options in ([], ["learned_from=nothing"]):
        code, err, _, scored = enter(ABOUT.with_seen([key]), *options)
        assert code == 2
        told = f"learned from 1 of the {work} test workloads of cpu-pools, the first {task}; "
        assert told in err.splitlines()[-1]
        assert "split=bundled split.seed=0" in err
        assert not scored
    # another window is no test workload
    other = replace(key, workload_key='["conv2d_layer",1,256,28,28,64,3,3,2,"VALID"]')
    code, err, form, _ = enter(ABOUT.with_seen([other]))
    assert code == 0, err
    assert form["learned_from"] == "1 tasks of k80"


def test_an_older_model_that_names_tasks_only_is_checked_by_the_records(enter, truth):
    """Files from before `seen_workloads` say tasks by name."""
    names = sorted(set(truth.task[truth.platform == "cpu-avx2"]))[:2]
    code, err, _, _ = enter(replace(ABOUT, seen_tasks={"cpu-avx2": names}))
    assert code == 2
    assert f"learned from 2 of the {truth.task.nunique()} test workloads" in err
    assert f"the first {names[0]};" in err
    code, err, _, _ = enter(replace(ABOUT, seen_tasks={"cpu-sse4": ["matmul_64_512_256"]}))
    assert code == 0, err


def test_a_form_that_would_be_refused_is_told_before_scoring(enter):
    code, err, form, scored = enter(ABOUT, "learned_from=TenSet", "notes='a | b'")
    assert code == 2
    assert "notes stands in a table" in err
    assert (form, scored) == (None, 0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["entry=mine", "checkpoint=cpu", "model=symbolic"], "leave one of them out"),
        (["checkpoint=cpu"], "add entry=FOLDER"),
        (["entry=mine", "check=true"], "check=true compares the page with all entries"),
    ],
)
def test_words_that_exclude_each_other_are_told_before_any_work(run, board, words, told):
    err = run(board, *words).refusal
    assert (told in err, len(err.splitlines())) == (True, 1)


def test_the_committed_page_is_what_the_entries_give(command):
    result, _ = command("leaderboard", f"folder={BOARD}", "check=true").done
    assert result["entries"] > 0
