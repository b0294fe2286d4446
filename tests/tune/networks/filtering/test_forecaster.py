"""Forecasts of networks: the sum of their tasks, from drafts that are made once."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from experiments.filter.run import hand_over
from pruner import arrays
from pruner.models.forecast import Forecast, forecast_of
from pruner.tune.networks import draft_task
from pruner.tune.networks.draft_network import SUMMARY, draft_tasks, read_drafts
from pruner.tune.networks.filtering import forecaster as kept_drafts
from pruner.tune.networks.filtering.forecaster import NetworkForecast
from pruner.tune.networks.filtering.outline import outline
from pruner.tune.networks.lowering import lower
from pruner.tune.networks.network_tasks import network_tasks
from pruner.tune.networks.source import import_module
from pruner.tune.run.database import Database
from tests.tune.networks import small_networks

pytestmark = pytest.mark.tvm


def longer():
    """The layers of `faint`, the last layer twice, and another."""
    network, inputs = small_networks.faint()
    again, other = nn.Linear(8, 8, bias=False), nn.Linear(8, 3)
    return nn.Sequential(network, again, other).eval(), inputs


def test_a_network_is_the_sum_of_its_tasks(make, drafts_here):
    network, inputs = longer()
    with make() as forecaster:
        found = forecaster.module(network, inputs, "net")
        imported = import_module(network, inputs, "net")
        tasks = outline(imported, forecaster.platform.target, forecaster.form).tasks
        device = forecaster.analyzer.device
        columns = [forecaster.drafts[task.key].draft.columns for task in tasks]
    alone = np.array([forecast_of([one], [1.0], device).seconds for one in columns])
    calls = np.array([task.weight for task in tasks], float)
    assert sorted(calls) == [1, 1, 2]
    np.testing.assert_allclose(found.forecast.seconds, calls @ alone, rtol=1e-6)
    assert found.median_s == found.forecast.median_s
    assert found.tasks == found.drafted == drafts_here.drafted == len(tasks) == 3


def test_a_draft_on_disk_gives_identical_numbers_and_no_draft(make, drafts_here, tmp_path):
    with make(tmp_path) as forecaster:
        first, again = (forecaster.module(*longer(), "net") for _ in range(2))
    made = drafts_here.drafted
    with make(tmp_path) as forecaster:
        later = forecaster.module(*longer(), "net")
    assert drafts_here.drafted == made == first.drafted == 3
    assert (again.drafted, later.drafted) == (0, 0)
    rows = [replace(one, drafted=0, seconds=0.0) for one in (first, again, later)]
    assert rows[0] == rows[1] == rows[2]


def test_a_folder_that_is_removed_meanwhile_costs_nothing(make, tmp_path):
    with make(tmp_path / "drafts") as forecaster:
        shutil.rmtree(tmp_path / "drafts")
        assert forecaster.module(*small_networks.faint(), "net").forecast is not None


def test_another_seed_or_a_damaged_file_is_drafted_anew(make, drafts_here, tmp_path):
    with make(tmp_path) as forecaster:
        forecaster.module(*longer(), "net")
    (folder,) = tmp_path.iterdir()
    assert len(list(folder.iterdir())) == 3
    next(folder.iterdir()).write_text("{")
    with make(tmp_path) as forecaster:
        assert forecaster.module(*longer(), "net").drafted == 1
    with make(tmp_path, seed=1) as forecaster:
        assert forecaster.module(*longer(), "net").drafted == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_draft_does_not_depend_on_the_name_of_its_task(make):
    drafts = []
    for before in ("", "other_"):
        with make() as forecaster:
            module = import_module(*small_networks.faint(), "net")
            found = outline(module, forecaster.platform.target, forecaster.form)
            tasks = [replace(task, name=before + task.name) for task in found.tasks]
            forecaster._start(replace(found, tasks=tasks))
            running = forecaster._running.items()
            drafts.append({key: future.result().value.record for key, (_, future) in running})
    assert drafts[0] == drafts[1]
    assert len(drafts[0]) == 2


def test_folders_that_were_not_used_for_longest_are_dropped(make, tmp_path, monkeypatch):
    """The folder of another program stays."""
    for name, time_s in (("a" * 32, 1), ("b" * 32, 2), ("mine", 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.json").write_text(" " * 100)
        os.utime(tmp_path / name, (time_s, time_s))
    monkeypatch.setattr(kept_drafts, "_MOST_BYTES", 150)
    with make(tmp_path) as forecaster:
        own = forecaster.drafts.digest
    assert {path.name for path in tmp_path.iterdir()} == {own, "b" * 32, "mine"}


def test_all_code_of_shapes_and_types_decides_a_draft(monkeypatch):
    files = []
    monkeypatch.setattr(kept_drafts, "digest_of", files.extend)
    kept_drafts._code.__wrapped__()
    assert {Path(module.__file__) for module in (arrays, draft_task)} <= set(files)


def test_a_forecast_does_not_depend_on_the_networks_before_it(make, drafts_here):
    """And a task that both have is drafted once."""
    both = small_networks.faint(), longer()
    with make() as forecaster:
        first, second = (forecaster.module(*one, "net") for one in both)
    with make() as forecaster:
        swapped = [forecaster.module(*one, "net") for one in both[::-1]]
    assert (first.drafted, second.drafted) == (2, 1)
    assert [one.drafted for one in swapped] == [3, 0]
    assert [one.forecast for one in swapped] == [second.forecast, first.forecast]


def test_a_task_without_a_program_is_neither_summed_nor_kept(make, tmp_path, monkeypatch):
    monkeypatch.setattr(draft_task, "_build_error", lambda *_: "no such instruction")
    with make(tmp_path) as forecaster:
        found = forecaster.module(*small_networks.faint(), "net")
    assert found.forecast is None
    assert found.reason.startswith("no forecast of ")
    assert found.median_s == float("inf")
    assert [path for folder in tmp_path.iterdir() for path in folder.iterdir()] == []


def test_a_limit_keeps_what_may_be_faster():
    known = NetworkForecast(name="a", forecast=Forecast(low_s=2e-3, median_s=4e-3, high_s=9e-3))
    assert [known.may_take(ms / 1e3) for ms in (1.9, 2.0, 3.0, 10.0)] == [False, True, True, True]
    assert NetworkForecast(name="b").may_take(1e-9)


def drafted(forecaster):
    """Tasks of a run, which the forecaster has drafted."""
    network, inputs = small_networks.faint()
    forecaster.module(network, inputs, "net")
    target = forecaster.platform.target
    module = lower(import_module(network, inputs, "net"), target, forecaster.form)
    return network_tasks(module, target)


def test_kept_drafts_are_those_of_a_run(make, drafts_here, tmp_path):
    """A run that gets them drafts nothing, and has their records."""
    with make() as forecaster:
        tasks, target = drafted(forecaster), forecaster.platform.target
        hand_over(forecaster.drafts, tasks, tmp_path)
        workloads, told = [task.workload for task in tasks], []
        found = draft_tasks(workloads, forecaster.platform, None, tmp_path, log=told.append)
    assert told == []
    assert [draft.how for draft in found.drafts] == ["drafted", "drafted"]
    assert all(Database(tmp_path).best(task.module, target) is not None for task in tasks)
    assert len(json.loads((tmp_path / SUMMARY).read_text())) == 2


def test_drafts_of_blocks_with_other_names_get_the_names_of_the_run(make, drafts_here, tmp_path):
    """Equal tasks have equal hashes, but a trace finds its blocks by their names.

    The draft of an unknown name is left to the run.
    """
    with make() as forecaster:
        (first, second), target = drafted(forecaster), forecaster.platform.target
        drafts = {task.key: forecaster.drafts[task.key] for task in (first, second)}
    hand_over(drafts, [first, second], tmp_path / "same")
    wanted = Database(tmp_path / "same").best(first.module, target)

    text = json.dumps(drafts[first.key].record)
    other = re.sub(r'("GetSBlock", \[\], \[")(?!root)', r"\1of_another_network_", text)
    assert other != text
    blocks = [f"of_another_network_{name}" for name in drafts[first.key].blocks]
    renamed = replace(drafts[first.key], record=json.loads(other), blocks=blocks)
    hand_over({**drafts, first.key: renamed}, [first, second], tmp_path / "renamed")
    assert set(read_drafts(tmp_path / "renamed")) == {first.name, second.name}
    found = Database(tmp_path / "renamed").best(first.module, target)
    assert found.script() == wanted.script()

    unknown = replace(renamed, blocks=())
    hand_over({**drafts, first.key: unknown}, [first, second], tmp_path / "unknown")
    assert list(read_drafts(tmp_path / "unknown")) == [second.name]
