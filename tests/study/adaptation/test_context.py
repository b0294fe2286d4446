"""What a comparison of adaptation methods runs on, and which of its cells are there."""

import gzip
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.models.training.recipe import Start
from pruner.paths import conf_folder
from pruner.progress import Progress
from pruner.search.offline.recorded import recorded_task
from pruner.study.adaptation.cells import Cells
from pruner.study.adaptation.context import (
    Budget,
    Chosen,
    _thinned,
    check_rounds,
    choose_tasks,
    prepare,
    seen_workloads,
)
from tests.models import synthetic
from tests.paths import DATASETS

BUDGET = Budget(
    trials=100, batch=10, tasks=2, least=8, spread=1.0, held_out=2, label_tasks=2, labels=[0],
    max_steps=1, source_programs=8,
)  # fmt: skip


def about(seen):
    return CheckpointInfo(
        model=ModelSpec(name="PaCM"), feature_version="", dataflow="paper", seen_tasks=seen
    )


def test_methods_with_all_their_seeds_are_finished(tmp_path):
    (tmp_path / "cells").mkdir()
    for cell in ("moa-seed-0", "moa-seed-1", "ewc-seed-0", "random-seed-0", "random-seed-1"):
        (tmp_path / "cells" / f"{cell}.json").touch()
    cells = Cells(folder=tmp_path)
    assert cells.finished(["ewc", "moa", "none"], [0, 1]) == ["moa"]
    assert cells.missing([("ewc", 0), ("ewc", 1)]) == [("ewc", 1)]


@pytest.fixture(scope="module")
def ansor(tmp_path_factory):
    """The first 16 records of every file of the Ansor set: its tasks are what is asked for."""
    few = tmp_path_factory.mktemp("ansor")
    for file in RecordRoot(DATASETS / "ansor").task_files():
        place = few / "measure_records" / file.platform / file.path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file.path) as lines, gzip.open(place, "wb", compresslevel=1) as kept:
            kept.writelines(islice(lines, 16))
    return RecordRoot(few)


def test_workloads_that_a_checkpoint_learned_anywhere_are_known(ansor):
    root, progress = ansor, Progress()
    keys = {name: [task.key for task in root.read(Quarantine(), name)] for name in root.platforms}
    here, third = keys["cpu-sse4"] + keys["cpu-avx2"], keys["cpu-avx512"]
    learned = {"cpu-avx2": [keys["cpu-avx2"][0].task], "cpu-avx512": [third[1].task, third[2].task]}
    seen = seen_workloads(about(learned), root, here, progress)
    assert seen == {k.identity for k in (keys["cpu-avx2"][0], third[1], third[2])}
    with pytest.raises(PrunerError, match=r"fitted on records of orin, which .* lacks"):
        seen_workloads(about({"orin": ["conv2d"]}), root, here, progress)
    # one that says the workloads needs no records of that platform
    told = CheckpointInfo(
        model=ModelSpec(name="PaCM"), feature_version="", dataflow="paper",
        seen_tasks={"orin": ["conv2d"]}, seen_workloads={"orin": {"conv2d": "work"}},
    )  # fmt: skip
    assert seen_workloads(told, root, here, progress) == {"work"}


def test_too_few_trials_and_too_few_tasks_are_one_line_before_the_work(ansor):
    """Five tasks take turns with ten programs a round: the fifth is measured from trial 41 on."""
    keys = [task.key for task in ansor.read(Quarantine(), "cpu-sse4")]
    spreads = dict.fromkeys(keys, 2.0)
    budget = replace(BUDGET, trials=41, tasks=5)
    assert len(choose_tasks(spreads, budget).tuned) == 5
    with pytest.raises(PrunerError, match=r"trials=40: 5 tasks take turns, .* give 41 or more"):
        choose_tasks(spreads, replace(budget, trials=40))
    with pytest.raises(DataError, match=r"2 usable tasks of the target beside 9 .* or none"):
        choose_tasks(dict.fromkeys(keys[:2], 2.0), budget, num_seen=9)


def test_small_pools_that_end_a_search_before_every_task_is_measured_are_told():
    """Two tasks of 10 and 40: five programs each are searched, a round of ten takes all of them."""
    budget = replace(BUDGET, trials=100)
    with pytest.raises(DataError, match=r"has 10 measured programs, .* give budget.least=20"):
        check_rounds([40, 10], budget)
    check_rounds([40, 12], budget)  # ten of the first, then two of the second
    check_rounds([10], budget)


def test_source_programs_are_spread_over_all_of_a_task():
    store = synthetic.store(sizes=(13, 4, 9))
    kept = _thinned(store, Chosen(tuned=(), held_out=(), labelled=()), 7)
    assert kept.line.tolist() == [*range(0, 13, 2), *range(4), 0, 1, 3, 4, 5, 7, 8]


def test_pools_of_cached_features_are_those_of_the_records(ansor, tmp_path):
    """Read twice, the second time from the cache: as if every record had been featurised here."""
    name, few = "cpu-avx2", tmp_path / "records"
    for file in ansor.task_files(["cpu-sse4", name]):
        if file.task.startswith(("matmul", "reduction", "pool")):
            place = few / "measure_records" / file.platform
            place.mkdir(parents=True, exist_ok=True)
            (place / file.path.name).symlink_to(file.path)
    root, cache = RecordRoot(few), tmp_path / "cache"
    analyzer = load_analyzer(conf_folder(), name)
    budget = replace(BUDGET, trials=8, batch=4)

    def train(programs, split):
        return Start(ranker=NeuralRanker(TenSetMLP(), ColumnScaler()), info=about({}))

    for _ in range(2):
        context = prepare(
            root, "cpu-sse4", name, budget, analyzer=analyzer, train=train, cache=cache
        )
    assert {path.name for path in cache.iterdir()} == {"cpu-sse4", name}
    released = replace(about({}), dataflow="official")
    given = Start(ranker=NeuralRanker(PaCM(num_dataflow_rows=8), ColumnScaler()), info=released)
    eight = prepare(root, "cpu-sse4", name, budget, analyzer=analyzer, train=train, given=given)
    assert eight.held_out.num_dataflow_rows == eight.source_store.num_dataflow_rows == 8
    assert all(pool.programs.features.dataflow.shape[1] == 8 for pool in eight.pools)
    for path in (few / "measure_records" / "cpu-sse4").iterdir():  # a source of tuned tasks alone
        if not path.name.startswith(eight.pools[0].key.task):
            path.unlink()
    alone = prepare(root, "cpu-sse4", name, budget, analyzer=analyzer, train=train, given=given)
    assert alone.source_store is None
    assert alone.source_quality() is not None
    with Quarantine() as quarantine:
        records = {task.key: task for task in root.read(quarantine, name)}
    assert len(context.pools) == 2
    for pool in context.pools:
        expected = recorded_task(records[pool.key], analyzer=analyzer)
        assert np.array_equal(pool.draft, expected.draft)
        assert np.array_equal(pool.cost_s, expected.cost_s)
        assert np.array_equal(pool.space.decisions, expected.space.decisions)
        ours, theirs = pool.programs, expected.programs
        assert np.array_equal(ours.features.statement, theirs.features.statement)
        assert np.array_equal(ours.latency_s, theirs.latency_s)
