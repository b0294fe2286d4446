"""Pools of real programs: measured, interrupted, gone on with, read by every other room."""

import gzip
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from pruner.data.metaschedule import find_databases
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.features.batch import featurize_records
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.quality import score_records
from pruner.models.programs.dataset import load_programs
from pruner.program.replay import definitions_of
from pruner.tune.measure.jobs import Timing
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import DeviceMeasurer, MeasureSettings, Platform
from pruner.tune.pools.collector import PROBED, Collector, PoolPlan
from pruner.tune.pools.importing import import_databases
from pruner.tune.pools.measured_set import MeasuredSet, PoolPlatform
from pruner.tune.pools.measurement_log import REFUSED
from pruner.tune.pools.records import PoolSettings
from pruner.tune.run.database import Database, measured_s
from pruner.tune.spaces.design import design_spaces
from pruner.tune.workloads import load_workloads
from tests.paths import CONF
from tests.tune.held import held_elsewhere
from tests.tune.targets import device_of, open_designs

pytestmark = pytest.mark.tvm

PLATFORM = "cpu-sse4"
PROGRAMS = 4
SPECS = (
    {"operator": "matmul", "m": 32, "n": 32, "k": 32, "epilogue": ["relu"]},
    {"operator": "softmax", "rows": 16, "columns": 64},
)


def plan_in(out, specs=SPECS, **settings):
    device = device_of(PLATFORM)
    workloads = load_workloads({"tasks": list(specs)})
    place = PoolPlatform(platform=make_platform(device), device=device, workloads=workloads)
    chosen = {"programs": PROGRAMS, "apart_s": 0.0, "agree": 100.0, "chunk": 4, **settings}
    measure = MeasureSettings(timing=Timing(repeats=2, min_repeat_ms=1), builders=1)
    how = {"settings": PoolSettings(**chosen), "measure": measure}
    return PoolPlan(platforms=[place], out=out, **how)


def collect(plan, log=lambda _: None, stopped=lambda: False):
    return Collector(plan, log, stopped).collect()


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """A collection that was ended after some programs and then gone on with."""
    out = tmp_path_factory.mktemp("pools")

    def stopped():
        ledgers = out.glob("pools/*/*.jsonl")
        return sum(path.read_text().count('"costs_s"') for path in ledgers) >= PROGRAMS - 1

    ended = collect(plan_in(out, evolved=0.34), stopped=stopped)
    told = []
    return out, ended, collect(plan_in(out, evolved=0.34), told.append), told


def test_an_ended_collection_goes_on_where_it_was(pools):
    out, ended, found, told = pools
    assert ended.interrupted
    assert 0 < ended.records < 2 * PROGRAMS
    assert (found.records, found.pools, found.of) == (2 * PROGRAMS, 2, 2)
    assert not found.interrupted
    assert any("left in all" in line for line in told)
    lines = (out / "pools" / PLATFORM / "matmul_relu_32_32_32.jsonl").read_text().splitlines()
    timed = [e["program"] for e in map(json.loads, lines) if e.get("costs_s")]
    assert len(timed) == 2 * PROGRAMS  # nothing was timed more often for the interruption
    assert timed[:PROGRAMS] != timed[PROGRAMS:]  # another order


def test_what_was_built_before_is_only_timed(tmp_path):
    """On a machine without a device the programs are built; with one the folder is gone on with."""
    plan = plan_in(tmp_path, SPECS[:1])
    prepared = Collector(plan).prepare()
    assert (prepared.built, prepared.records) == (PROGRAMS, 0)
    measurement_log = tmp_path / "pools" / PLATFORM / "matmul_relu_32_32_32.jsonl"

    def entries(word):
        return [e for e in map(json.loads, measurement_log.read_text().splitlines()) if word in e]

    assert len(entries("built")) == PROGRAMS
    assert not entries("costs_s")
    again = Collector(plan)
    assert again.prepare().built == PROGRAMS  # nothing is drawn or built twice
    pool = again.pools[0]
    one = pool.measurement_log.programs[0]
    one.built, one.error = False, "build"
    assert not pool.all_failed  # the others wait for their timing
    for one in pool.measurement_log.programs:
        one.built, one.error = False, REFUSED
    assert pool.all_failed
    pool.measurement_log.programs.clear()
    assert not pool.all_failed
    pool.measurement_log.ended["random"] = "no more programs"
    assert pool.all_failed
    found = collect(plan)
    assert (found.records, found.built, found.pools) == (PROGRAMS, 0, 1)
    assert len(entries("built")) == PROGRAMS
    assert len(entries("costs_s")) == 2 * PROGRAMS


def test_the_next_programs_are_built_while_a_device_of_its_own_is_timed(tmp_path, monkeypatch):
    """The same programs as on a CPU, where nothing may be built during a timing."""
    events = []
    begin, timed = DeviceMeasurer.begin_build, DeviceMeasurer.time_library

    def noted(kind, call):
        return lambda *given: (events.append(kind), call(*given))[1]

    monkeypatch.setattr(DeviceMeasurer, "begin_build", noted("build", begin))
    monkeypatch.setattr(DeviceMeasurer, "time_library", noted("time", timed))
    drawn = []
    for own in (False, True):
        events.clear()
        monkeypatch.setattr(Platform, "shares_cpu", not own)
        out = tmp_path / str(own)
        found = collect(plan_in(out, SPECS[:1], chunk=2))
        assert (found.records, found.pools) == (PROGRAMS, 1)
        # chunks of two: on a CPU two builds come before each two timings, else all six at first
        before = events[: events.index("time")]
        assert before == ["build"] * (PROGRAMS if own else 2)
        (measurement_log,) = out.glob("pools/*/*.jsonl")
        entries = map(json.loads, measurement_log.read_text().splitlines())
        drawn.append([e["rows"] for e in entries if "rows" in e])
    assert drawn[0] == drawn[1] != []


def test_records_are_read_like_any_others_and_metaschedules_database_has_them(pools):
    root = RecordRoot(pools[0])
    with Quarantine() as quarantine:
        tasks = list(root.read(quarantine))
    assert not quarantine.total
    assert sorted(task.key.task for task in tasks) == ["matmul_relu_32_32_32", "softmax_16_64"]
    for task in tasks:
        assert len(task) == PROGRAMS
        assert task.valid.all()
        assert sorted(task.origin) == ["evolved"] + ["random"] * 3
        assert all(len(costs) == 2 for costs in task.costs_s)
    assert tasks[0].fused == ("relu",)
    for task in tasks:
        folder = pools[0] / "metaschedule" / PLATFORM / task.key.task
        database = Database(folder).tvm_database
        found = sorted(measured_s(one) for one in database.get_all_tuning_records())
        np.testing.assert_allclose(found, sorted(task.latency_s), rtol=1e-6)


def test_programs_have_features_labels_and_draft_scores(pools):
    root = RecordRoot(pools[0])
    dataset = load_programs(root, [PLATFORM])
    assert dataset.store.num_programs == 2 * PROGRAMS
    assert dataset.tally.num_failed == 0
    assert dataset.store.flags[0].any()  # the text of its design space
    with Quarantine() as quarantine:
        for records in root.read(quarantine):
            analyzer = load_analyzer(CONF, PLATFORM)
            scored = score_records(records, analyzer, definitions_of(root.path))
            assert np.isfinite(scored.score).all()
            assert len(np.unique(scored.score)) > 1


def test_recorded_features_are_those_of_the_live_space(pools):
    plan = plan_in(pools[0])
    (place,) = plan.platforms
    for workload in place.workloads:
        union = open_designs(design_spaces(workload.module, place.platform.target))
        rows = union.sample(12, np.random.default_rng(5))
        live = union.features(rows)
        steps = []
        pool = MeasuredSet(workload, place, pools[0], plan.settings)
        for space, *decisions in rows.tolist():
            width = union.spaces[space].num_slots
            steps.append([["MS", pool.measurement_log.spaces[space], decisions[:width]]])
        found = featurize_records(workload.key, (), steps, tasks=definitions_of(pools[0]))
        np.testing.assert_array_equal(found.valid, live.valid)
        np.testing.assert_array_equal(found.statement, live.statement)
        np.testing.assert_array_equal(found.dataflow, live.dataflow)
        np.testing.assert_array_equal(found.workload, live.workload)


def test_the_collection_says_where_and_how_it_was_made(pools):
    about = json.loads((pools[0] / "about.json").read_text())
    assert {pool["task"]: pool["valid"] for pool in about["pools"]} == {
        "matmul_relu_32_32_32": PROGRAMS, "softmax_16_64": PROGRAMS,
    }  # fmt: skip
    assert about["machine"]["apache-tvm"].startswith("0.27")
    assert "nehalem" in about["targets"][PLATFORM]
    assert about["seconds"] > 0
    # results that are right are known to be
    assert (pools[2].unchecked, pools[2].unsuccessful) == (0, ())
    assert [pool["unchecked"] for pool in about["pools"]] == [0, 0]


def test_a_pool_without_reference_is_not_checked_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(DeviceMeasurer, "_reference", lambda *_: "timeout: stopped after 30 s")
    plan, told = plan_in(tmp_path, SPECS[:1], programs=2), []
    found = collect(plan, told.append)
    name = f"{PLATFORM} matmul_relu_32_32_32"
    assert (found.records, found.unchecked, found.unsuccessful) == (2, 2, (name,))
    assert sum("RESULTS ARE NOT CHECKED, no reference (timeout" in line for line in told) == 1
    (about,) = json.loads((tmp_path / "about.json").read_text())["pools"]
    assert (about["valid"], about["unchecked"]) == (2, 2)
    (path,) = (tmp_path / "measure_records" / PLATFORM).iterdir()
    with gzip.open(path) as file:
        assert [json.loads(line)["checked"] for line in file] == [False, False]
    asked = replace(plan, measure=replace(plan.measure, check=False))
    assert collect(asked).unsuccessful == ()  # not asked for
    for text in ("[]", '{"pools": [1]}', '{"seconds": "x"}'):
        (tmp_path / "about.json").write_text(text)
        with pytest.raises(DataError, match=r"about\.json: damaged"):
            collect(asked)


def test_a_pool_that_is_not_opened_is_told_and_takes_no_time(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PrunerError("no space")

    monkeypatch.setattr("pruner.tune.pools.measured_set.open_spaces", refused)
    monkeypatch.setattr(Collector, "_each_s", lambda *_: 1.0)
    found = Collector(plan_in(tmp_path, SPECS[:1])).estimate()
    assert found.unsuccessful == (f"{PLATFORM} matmul_relu_32_32_32",)
    assert (found.left_s, found.short) == (0.0, ("no space",))


def test_a_finished_collection_is_left_alone_and_takes_more_programs(pools, tmp_path):
    shutil.copytree(pools[0], tmp_path / "more")
    work, told = tmp_path / "more" / "pools" / PLATFORM / "matmul_relu_32_32_32", []
    work.mkdir()
    (work / "0.so").write_bytes(b"")  # of a killed session
    same = collect(plan_in(tmp_path / "more", evolved=0.34), told.append)
    assert told == []
    assert same.records == 2 * PROGRAMS
    assert not work.exists()
    plan = plan_in(tmp_path / "more", SPECS[:1], programs=6, evolved=0.25)
    more = collect(plan)
    assert (more.records, more.pools) == (6, 1)


def test_a_folder_has_one_collection_at_a_time(tmp_path):
    with held_elsewhere(tmp_path), pytest.raises(PrunerError, match="works in it"):
        collect(plan_in(tmp_path))


@pytest.mark.slow
def test_a_few_programs_tell_how_long_all_will_take(tmp_path):
    plan = plan_in(tmp_path, SPECS[:1])
    found = Collector(plan).estimate()
    assert found.records == PROBED
    assert found.left_s > 0
    assert collect(plan).records == PROGRAMS  # they count


def test_databases_of_others_become_records(pools, tmp_path):
    """Of today's names; test_older_functions has those of 0.1x."""
    theirs = find_databases(pools[0] / "metaschedule")[0]
    with Quarantine() as quarantine:
        found = import_databases(theirs, tmp_path / "out", PLATFORM, quarantine)
    assert (found.records, found.failed, found.tasks) == (2 * PROGRAMS, 0, 2)
    assert not quarantine.total
    ours = by_latency(load_programs(RecordRoot(pools[0]), [PLATFORM]).store)
    imported = by_latency(load_programs(RecordRoot(tmp_path / "out"), [PLATFORM]).store)
    assert len(imported) == len(ours)
    for (mine_s, mine), (other_s, other) in zip(ours, imported, strict=True):
        assert other_s == pytest.approx(mine_s, rel=1e-6)
        np.testing.assert_array_equal(other.statement.numpy(), mine.statement.numpy())


def test_records_of_others_that_do_not_fit_are_counted_one_by_one(pools, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(pools[0] / "metaschedule" / PLATFORM / "matmul_relu_32_32_32", theirs)
    path = theirs / "database_tuning_record.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0][0] = 7  # there is no such workload
    for line in lines[1:3]:  # the first that a space is opened with, and another
        tile = next(one for _, one in line[1][0][1] if isinstance(one, list) and len(one) > 1)
        tile.append(1)  # a factor more than the loop has
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with Quarantine() as quarantine:
        found = import_databases(find_databases(theirs)[0], tmp_path / "out", PLATFORM, quarantine)
    assert [path.name for path in (tmp_path / "out" / "measure_records").iterdir()] == [PLATFORM]
    with pytest.raises(PrunerError, match="is left alone"):
        import_databases(find_databases(theirs)[0], tmp_path / "out", PLATFORM, Quarantine())
    with pytest.raises(PrunerError, match="use letters"):
        import_databases(find_databases(theirs)[0], tmp_path / "out", "../out", Quarantine())
    assert found.records == PROGRAMS - 3
    assert quarantine.total == 3


def by_latency(store):
    """(seconds, features) of every program, the fastest first."""
    order = store.latency_s.argsort()
    return [(float(store.latency_s[n]), store.programs(n[None])) for n in order]
