"""Drafted schedules: each task has one, the analyzer's best, and nobody takes it for measured."""

import json
from concurrent.futures import Future
from contextlib import closing

import numpy as np
import pytest

from pruner.errors import PrunerError, UnsupportedProgram
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, SCORE
from pruner.processes import Reply
from pruner.search.space import RowKeys
from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.networks import draft_network, draft_task
from pruner.tune.networks.draft_network import DraftWorkers, draft_tasks, read_drafts
from pruner.tune.networks.draft_task import Depth, Draft, Drafted, best
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.run.database import NEVER_MEASURED_S, RECORDS, Database
from pruner.tune.spaces import opening
from pruner.tune.spaces.design import design_spaces
from pruner.tune.workloads import flops, operator
from tests.tune.held import held_elsewhere
from tests.tune.networks.lowered import imported
from tests.tune.targets import open_designs, platform_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def platform():
    return platform_of("cpu-avx2")


@pytest.fixture(scope="module")
def tasks(platform):
    found = network_tasks(lower(imported("encoder"), platform.target), platform.target)
    wanted = ("matmul_add", "reshape_add", "take", "reshape")
    chosen = {word: next(t for t in found if t.name.startswith(word)) for word in wanted}
    return {word: task.workload for word, task in chosen.items()}


@pytest.fixture(scope="module")
def drafted(tasks, platform, tmp_path_factory):
    told, order, analyzer = [], list(tasks.values()), platform_analyzer(platform)
    folder = tmp_path_factory.mktemp("run") / "drafted"
    summary = draft_tasks(order, platform, analyzer, folder, log=told.append)
    assert len(told) == len(tasks)
    return summary


def test_every_task_has_a_schedule_that_says_it_was_not_measured(tasks, platform, drafted):
    how = {draft.task: draft.how for draft in drafted.drafts}
    database = Database(drafted.folder)
    for word, task in tasks.items():
        found = database.best(task.module, platform.target)
        assert (found is None) == (how[task.name] in ("view", "none")), word
    words = ("matmul_add", "reshape_add", "take")
    assert [how[tasks[word].name] for word in words] == ["drafted"] * 3
    costs = [float(r.run_secs[0]) for r in database.tvm_database.get_all_tuning_records()]
    assert costs == [NEVER_MEASURED_S] * sum(h in ("drafted", "by chance") for h in how.values())
    rows = json.loads((drafted.folder / draft_network.SUMMARY).read_text(encoding="utf-8"))
    assert {row["task"]: row["how"] for row in rows} == how


def test_drafted_programs_beat_random_ones_and_have_columns_for_forecasts(tasks, platform, drafted):
    task = tasks["matmul_add"]
    designs = design_spaces(task.module, platform.target)
    space = open_designs(designs, platform_analyzer(platform))
    scores = space.draft_score(space.sample(300, np.random.default_rng(5)))
    (draft,) = [d for d in drafted.drafts if d.task == task.name]
    assert -np.log(draft.estimate_s) >= np.quantile(scores[np.isfinite(scores)], 0.99)
    # Its first column is the score of the rates that no record has moved.
    known = [draft for draft in drafted.drafts if draft.how == "drafted"]
    assert len(known) >= 3
    for draft in known:
        assert len(draft.columns) == NUM_DRAFT_COLUMNS
        assert abs(-draft.columns[SCORE] - np.log(draft.estimate_s)) < np.log(4)


def test_a_task_keeps_the_draft_that_it_has(tasks, platform, tmp_path):
    """Which without analyzer is a legal program."""
    first, second, told = tasks["reshape_add"], tasks["matmul_add"], []
    draft_tasks([first], platform, None, tmp_path)
    summary = draft_tasks([second], platform, None, tmp_path)
    assert summary.counts == {"by chance": 1}
    assert Database(tmp_path).best(second.module, platform.target) is not None
    assert list(read_drafts(tmp_path)) == [first.name, second.name]
    again = draft_tasks([second, first], platform, None, tmp_path, log=told.append)
    assert told == []
    assert again.drafts == [*summary.drafts, read_drafts(tmp_path)[first.name]]
    assert len(Database(tmp_path).tvm_database.get_all_tuning_records()) == 2


class Workers:
    """Workers whose replies a function gives: None is never."""

    def __init__(self, reply_of):
        self.reply_of = reply_of

    def draft(self, job):
        future = Future()
        if (reply := self.reply_of(job)) is not None:
            future.set_result(reply)
        return future


def test_who_is_asked_to_end_keeps_what_is_drafted(tasks, platform, tmp_path):
    first, second, told = tasks["reshape_add"], tasks["matmul_add"], []
    reply = Reply(value=Drafted(draft=Draft(task=first.name, how="none")))
    workers = Workers(lambda job: reply if job.task == first.name else None)
    found = draft_tasks(
        [first, second], platform, None, tmp_path, workers=workers, log=told.append,
        stopped=lambda: bool(told),
    )  # fmt: skip
    assert [draft.task for draft in found.drafts] == [first.name]
    assert len(told) == 1


def test_two_processes_do_not_draft_into_one_folder(tasks, platform, tmp_path):
    told = r"process \d+ on .* works in it"
    with held_elsewhere(tmp_path) as other, pytest.raises(PrunerError, match=told) as refused:
        draft_tasks([tasks["reshape_add"]], platform, None, tmp_path)
    assert f"process {other.pid} on" in str(refused.value)


def refuse(*_, **__):
    raise PrunerError("no random program is legal")


@pytest.mark.parametrize(
    ("part", "answer", "reason"),
    [
        ("open_spaces", refuse, "no random program is legal"),
        ("_build_error", lambda *_: "no sqrt", "TVM builds no random program: no sqrt"),
    ],
)
def test_no_program_has_a_reason(tasks, platform, tmp_path, monkeypatch, part, answer, reason):
    monkeypatch.setattr(draft_task, part, answer)
    told = []
    summary = draft_tasks([tasks["reshape_add"]], platform, None, tmp_path, log=told.append)
    assert summary.counts == {"none": 1}
    assert summary.drafts[0].reason == reason
    assert reason in told[0]


def test_a_draft_says_which_spaces_are_left_to_tvm(tasks, platform, tmp_path, monkeypatch):
    """All spaces of a task, or the first of it; the share is of both tasks' arithmetic."""
    batched, refused = opening.BatchedSpace, []

    def some_are_unknown(design, **how_often):
        if how == "all" or design.module in refused:
            raise UnsupportedProgram("trace-instruction", "Blockize")
        refused.append(design.module)
        return batched(design, **how_often)

    monkeypatch.setattr(opening, "BatchedSpace", some_are_unknown)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    analyzer, task, other = platform_analyzer(platform), tasks["matmul_add"], tasks["take"]
    spaces = {"all": "3 design spaces", "some": "2 design spaces (2 left out of the draft)"}
    for how, words in spaces.items():
        told = []
        summary = draft_tasks([task], platform, analyzer, tmp_path / how, log=told.append)
        (draft,) = summary.drafts
        assert draft.replayed == (3 if how == "all" else 2)
        assert draft.reason == f"only TVM can replay {words}: trace-instruction: Blockize"
        assert told[0].startswith(f"drafted 1/1: {task.name}, estimate")
        assert told[0].endswith(f"({draft.reason})")
        assert summary.replayed([task]).share == 1.0
        assert read_drafts(summary.folder) == {task.name: draft}
    monkeypatch.setattr(opening, "BatchedSpace", batched)
    both = draft_tasks([task, other], platform, analyzer, tmp_path / "some")
    assert [draft.replayed for draft in both.drafts] == [2, 0]
    slow, fast = (one.weight * flops(one.module) for one in (task, other))
    assert both.replayed([task, other]).share == slow / (slow + fast)


def test_drafts_do_not_depend_on_processes(tasks, platform, drafted, tmp_path, monkeypatch):
    """Alone, beside others, in one worker and in this process; records too."""
    analyzer, order = platform_analyzer(platform), list(tasks.values())
    with closing(DraftWorkers(1)) as workers:
        one = draft_tasks(order, platform, analyzer, tmp_path / "one", workers=workers)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    here = draft_tasks(order, platform, analyzer, tmp_path / "here")
    assert here.drafts == one.drafts == drafted.drafts
    texts = {(path / RECORDS).read_text() for path in (one.folder, here.folder, drafted.folder)}
    assert len(texts) == 1


def test_a_worker_that_dies_costs_one_task(tasks, platform, tmp_path):
    dying, task = Workers(lambda _: Reply(error="crash", message="SIGKILL")), tasks["reshape_add"]
    (draft,) = draft_tasks([task], platform, None, tmp_path, workers=dying).drafts
    assert (draft.how, draft.reason) == ("none", "drafting it ended with crash: SIGKILL")


class Line:
    """Numbers 0 to 999 by one slot; a program's score is its number's, lower numbers are rarer."""

    num_slots = 1

    def __init__(self):
        self.keys, self.asked = RowKeys(1), []

    def sample(self, num, rng):
        return rng.integers(500, 1000, (num, 1))

    def mutate(self, parents, rng):
        return np.maximum(parents - rng.integers(0, 80, parents.shape), 0)

    def draft_score(self, decisions):
        self.asked += decisions[:, 0].tolist()
        return -np.log(1e-3 * (1 + decisions[:, 0]))


def test_the_best_are_changed_until_that_does_not_pay_and_none_is_scored_twice():
    space = Line()
    rows, estimates_s = best(space, Depth(sample=64, rounds=100), np.random.default_rng(0))
    assert rows[0, 0] == 0
    assert estimates_s[0] == pytest.approx(1e-3)
    assert estimates_s == sorted(estimates_s)
    assert len(space.asked) == len(set(space.asked)) < 1000
    few = Line()
    rows, _ = best(few, Depth(sample=64, rounds=1), np.random.default_rng(0))
    assert 500 - 80 < rows[0, 0] < 520  # one change of what was drawn
    assert len(few.asked) <= 64 + 32 * 16


def test_tasks_of_little_time_get_a_small_draft():
    depths = [Depth.of_share(share) for share in (0.5, 0.02, 0.01, 0.003, 0.002, 0.0)]
    samples = [depth.sample for depth in depths]
    assert samples == sorted(samples, reverse=True)
    assert samples[0] == samples[1] > samples[2] == samples[3] > samples[4] == samples[5]
    assert depths[-1].rounds == 1


def test_shares_of_time_are_by_arithmetic_or_by_bytes():
    """A product of 64^3 is 2 * 64^3 = 524,288 operations and moves 3 * 64^2 * 4 = 49,152 bytes,
    worth 491,520. The greatest of 2 x 2 of 64^2 numbers are 4 * 32^2 = 4,096 operations, and move
    (64^2 + 32^2) * 4 = 20,480 bytes, worth 204,800; thrice."""
    image = {"n": 1, "c": 1, "h": 64, "w": 64, "kh": 2, "kw": 2, "stride": 2, "padding": 0}
    pool = operator("pool", weight=3.0, kind="max", **image)
    shares = draft_network.time_shares([operator("matmul", m=64, n=64, k=64), pool])
    assert shares[0] == pytest.approx(524_288 / (524_288 + 3 * 204_800))
    assert sum(shares) == pytest.approx(1.0)
