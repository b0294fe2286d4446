"""Nested rates: no latency of a test task reaches them; columns by them are the analyzer's."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
import torch

from experiments.model.ablation.cells import NESTED, AblationCell, settings_of
from experiments.model.ablation.rates import (
    FREE,
    NEUTRAL,
    NestedRates,
    draft_by,
    fit_rates,
    gpu_analyzer,
    tasks_reader,
)
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.columns import SCORE
from pruner.models.analyzer.constants import AnalyzerConstants, GpuRates
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.reading import ReadSpec
from pruner.program.replay import find_definition
from pruner.progress import Progress

CELL = AblationCell(setting=settings_of(["v100"])[0], model="draft", seed=0, rates=NESTED)
OTHER = GpuRates(stage=30.0, step_cycles=900.0, spill=2.0)


@cache
def programs_of(root):
    return load_programs(RecordRoot(root), ["v100"], ReadSpec(draft=True)).store


@cache
def reader_of(root):
    return tasks_reader(RecordRoot(root), Progress())


def nested_of(root, folder, **options):
    return NestedRates(
        folder=folder, read=reader_of(root), **{"num_programs": 60, "max_steps": 2} | options
    )


def rates_of(root, folder):
    (found,) = nested_of(root, folder).fit([CELL], programs_of(root))
    return found


def test_no_latency_of_a_test_task_reaches_the_rates(measured, tmp_path):
    programs = programs_of(measured())
    split = CELL.setting.divided(programs.keys, CELL.seed)
    assert split.train
    assert split.valid
    assert split.test
    clean = rates_of(measured(), tmp_path / "clean")
    assert clean["num_tasks"] == len(split.train) + len(split.valid)
    named = set(clean["origin"].partition(": ")[2].split(", "))
    assert named == {f"v100/{key.task}" for key in (*split.train, *split.valid)}

    poisoned = rates_of(measured(*(key.task for key in split.test)), tmp_path / "poisoned")
    assert poisoned["rates"] == clean["rates"]
    for side in ("train", "valid"):  # the poison works where it may
        root = measured(split.side(side)[0].task)
        assert rates_of(root, tmp_path / side)["rates"] != clean["rates"]


def test_a_fit_is_made_once_and_read_by_the_next_run(measured, tmp_path):
    root = measured()
    programs = programs_of(root)
    nested = nested_of(root, tmp_path)
    first = nested.fit([CELL], programs)

    def unread(platform):
        raise AssertionError(platform)

    assert replace(nested, read=unread).fit([CELL], programs) == first
    with pytest.raises(AssertionError, match="v100"):  # another fit is another
        replace(nested, read=unread, num_programs=70).fit([CELL], programs)


def test_columns_by_shipped_and_by_other_rates_are_those_of_the_analyzer(measured):
    root = measured()
    programs = programs_of(root)
    assert int(programs.line.max()) > programs.num_programs // len(programs.keys)  # some failed
    found = draft_by({"v100": gpu_analyzer("v100")}, reader_of(root),
                     programs)  # fmt: skip
    assert torch.equal(found, programs.draft)
    some = torch.arange(0, programs.num_programs, 3)  # as if other programs had no features
    found = draft_by({"v100": gpu_analyzer("v100")}, reader_of(root), programs.subset(some))
    assert torch.equal(found, programs.draft[some])
    analyzer = replace(gpu_analyzer("v100"), constants=AnalyzerConstants(rates=OTHER))
    found = draft_by({"v100": analyzer}, reader_of(root), programs)
    assert not torch.equal(found[:, SCORE], programs.draft[:, SCORE])
    each = {one.key: one for one in RecordRoot(root).read(Quarantine(), "v100")}
    for number, key in enumerate(programs.keys):
        records = each[key].select(each[key].valid)
        dag = find_definition(records.workload_key, records.fused, records.steps)
        expected = analyzer.score_steps(dag, records.steps)
        rows = programs.programs_of([number])
        np.testing.assert_allclose(found[rows, SCORE], expected, rtol=1e-6)


def test_all_else_of_the_programs_stays_and_changed_records_are_named(measured, tmp_path):
    root = measured()
    programs = programs_of(root)
    made = nested_of(root, tmp_path)(CELL, programs)
    assert made.keys == programs.keys
    assert torch.equal(made.rows, programs.rows)
    assert torch.equal(made.latency_s, programs.latency_s)
    assert not torch.equal(made.draft, programs.draft)
    read = reader_of(root)
    with pytest.raises(DataError, match="its records changed"):
        draft_by({"v100": gpu_analyzer("v100")}, read, replace(programs, line=programs.line + 1))
    with pytest.raises(DataError, match=r"without symbols or rates, of the tasks matmul_128"):
        draft_by({}, read, programs)


def test_a_fit_from_neutral_values_comes_near_a_device_of_other_rates(measured):
    tasks = [one.symbols for one in reader_of(measured())("v100")]
    found = fit_rates(tasks, gpu_analyzer("v100"), 200, seed=0, max_steps=25)
    assert found["error_nested"] < 0.9 * found["error_neutral"]
    assert found["error_nested"] < found["error_shipped"]
    fitted = {name for name, value in found["rates"].items() if value != NEUTRAL[name]}
    assert fitted <= set(FREE)
    assert NEUTRAL.keys() == {field.name for field in fields(GpuRates)}
    assert all(NEUTRAL[name] > 0 for name in FREE)  # fitted as logarithms


def test_a_cpu_and_a_platform_left_out_are_refused(measured, tmp_path):
    with pytest.raises(PrunerError, match="cpu-avx2 is no GPU"):
        gpu_analyzer("cpu-avx2")
    left_out = next(one for one in settings_of(["k80", "v100"]) if one.left_out)
    root = measured()
    with pytest.raises(PrunerError, match="without-k80: no rates"):
        nested_of(root, tmp_path).jobs([replace(CELL, setting=left_out)], programs_of(root))
