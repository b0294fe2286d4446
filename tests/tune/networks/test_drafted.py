"""Drafted schedules: each task has one, the analyzer's best, and nobody takes it for measured."""

import json

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.places import conf_folder
from pruner.program.device import load_device

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def platform():
    from pruner.tune.measure.machine import make_platform

    return make_platform(load_device(conf_folder() / "platform" / "cpu-avx2.yaml"))


@pytest.fixture(scope="module")
def tasks(platform):
    from pruner.tune.networks.lowering import lower
    from pruner.tune.networks.source import NetworkSource, import_network
    from pruner.tune.networks.tasks import network_tasks

    source = NetworkSource(name="tests.tune.networks.small_networks:encoder")
    found = network_tasks(lower(import_network(source), platform.target), platform.target)
    wanted = ("matmul_add", "reshape_add", "take", "reshape")
    chosen = {word: next(t for t in found if t.name.startswith(word)) for word in wanted}
    return {word: task.workload for word, task in chosen.items()}


@pytest.fixture(scope="module")
def drafted(tasks, platform, tmp_path_factory):
    from pruner.tune.networks.drafted import draft_tasks
    from pruner.tune.run.options import platform_analyzer

    told = []
    folder = tmp_path_factory.mktemp("run") / "drafted"
    summary = draft_tasks(
        list(tasks.values()), platform, platform_analyzer(platform), folder, tell=told.append
    )
    assert len(told) == len(tasks)
    return summary


def test_every_task_has_a_schedule_that_says_it_was_not_measured(tasks, platform, drafted):
    from pruner.tune.networks.drafted import SUMMARY
    from pruner.tune.run.database import NEVER_MEASURED_S, Database

    how = {draft.task: draft.how for draft in drafted.drafts}
    database = Database(drafted.folder)
    for word, task in tasks.items():
        found = database.best(task.module, platform.target)
        assert (found is None) == (how[task.name] in ("view", "none")), word
    words = ("matmul_add", "reshape_add", "take")
    assert [how[tasks[word].name] for word in words] == ["drafted"] * 3
    costs = [float(r.run_secs[0]) for r in database.tvm_database.get_all_tuning_records()]
    assert costs == [NEVER_MEASURED_S] * sum(h in ("drafted", "by chance") for h in how.values())
    rows = json.loads((drafted.folder / SUMMARY).read_text(encoding="utf-8"))
    assert {row["task"]: row["how"] for row in rows} == how


def test_the_drafted_program_beats_random_ones_of_its_task(tasks, platform, drafted):
    from pruner.tune.phases import Phases
    from pruner.tune.run.options import platform_analyzer
    from pruner.tune.run.setup import open_spaces
    from pruner.tune.spaces.design import design_spaces

    task = tasks["matmul_add"]
    space = open_spaces(
        design_spaces(task.module, platform.target),
        name=task.name,
        analyzer=platform_analyzer(platform),
        learns=False,
        phases=Phases(),
        tell=print,
    )
    scores = space.draft_score(space.sample(300, np.random.default_rng(5)))
    (draft,) = [d for d in drafted.drafts if d.task == task.name]
    assert -np.log(draft.estimate_s) >= np.quantile(scores[np.isfinite(scores)], 0.99)


def test_without_analyzer_there_is_a_legal_program(tasks, platform, tmp_path):
    from pruner.tune.networks.drafted import draft_tasks
    from pruner.tune.run.database import Database

    task = tasks["matmul_add"]
    summary = draft_tasks([task], platform, None, tmp_path)
    assert summary.counts == {"by chance": 1}
    assert Database(tmp_path).best(task.module, platform.target) is not None


def test_a_task_keeps_the_draft_that_it_has(tasks, platform, tmp_path):
    from pruner.tune.networks.drafted import draft_tasks, read_drafts
    from pruner.tune.run.database import Database

    first, second, told = tasks["reshape_add"], tasks["matmul_add"], []
    draft_tasks([first], platform, None, tmp_path)
    summary = draft_tasks([second], platform, None, tmp_path)
    assert list(read_drafts(tmp_path)) == [first.name, second.name]
    again = draft_tasks([second, first], platform, None, tmp_path, tell=told.append)
    assert told == []
    assert again.drafts == [*summary.drafts, read_drafts(tmp_path)[first.name]]
    assert len(Database(tmp_path).tvm_database.get_all_tuning_records()) == 2


def test_a_task_that_tvm_cannot_build_says_why(tasks, platform, tmp_path, monkeypatch):
    from pruner.tune.networks import drafted

    monkeypatch.setattr(drafted, "_build_error", lambda *_: "no such instruction")
    summary = drafted.draft_tasks([tasks["reshape_add"]], platform, None, tmp_path)
    (draft,) = summary.drafts
    assert draft.reason == "TVM builds no random program: no such instruction"


def test_a_task_without_programs_is_counted_and_told(tasks, platform, tmp_path, monkeypatch):
    from pruner.tune.networks import drafted

    def refuse(*_, **__):
        raise PrunerError("no random program is legal")

    monkeypatch.setattr(drafted, "open_spaces", refuse)
    told = []
    summary = drafted.draft_tasks(
        [tasks["reshape_add"]], platform, None, tmp_path, tell=told.append
    )
    assert summary.counts == {"none": 1}
    assert "no random program is legal" in told[0]
