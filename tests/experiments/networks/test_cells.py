"""Tables of a campaign by hand; when a run was as fast as a rival: which times are built."""

import json
from types import SimpleNamespace

import pytest

from experiments.networks.cells import (
    Cell,
    drafts_first,
    prefix_rows,
    result_rows,
    summarise,
)
from experiments.networks.prefixes import (
    Point,
    complete,
    copy_records,
    grid,
    halved,
    known,
    settled,
)
from pruner.errors import DataError
from pruner.files import write_json
from pruner.study.network.run import baseline_rows, read_network_run
from pruner.tune.run.journal import Trial
from tests.study.network.fabricated import contender, fabricate, trial

OURS = [("conv_a", 1.0, 1.0), ("dense_b", 1.0, 2.0)]  # conv_a is called twice: 3 s
RIVAL = [("conv_a", 2.0, 10.0), ("dense_b", 2.0, 20.0)]


def point(whose, t_s, measured, median_s):
    return Point(whose=whose, t_s=t_s, measured=measured, median_s=median_s, rival_s=4.0)


# From an empty folder ours starts after 3 s (the draft takes 2 s of them), the rival after 1 s.
POINTS = [point("ours", 0.0, 0, 5.0), point("ours", 1.0, 1, 4.0), point("ours", 2.0, 2, 1.0)]
RIVALS = [point("rival", 19.0, 2, 4.0)]


@pytest.fixture
def cells(tmp_path):
    def cell(policy, trials, **more):
        run = read_network_run(fabricate(tmp_path / policy, trials))
        return Cell(network="tiny", policy=policy, seed=0, run=run, **more)

    return [
        cell("ours", OURS, network_s=1.0, start_s=3.0, drafted_s=3.0, points=POINTS),
        cell("metaschedule", RIVAL, network_s=4.0, start_s=1.0, points=RIVALS, settled_s=39.0),
    ]


def test_times_to_the_rivals_latency_count_import_and_draft_and_are_set_in_proportion(cells):
    ours, rival = result_rows(cells)
    assert ours["seconds_to_rival"] == 4.0  # 1 s of tuning after 3 s
    assert rival["seconds_to_rival"] == 40.0  # its network was final after 39 s of tuning
    assert (ours["drafted_s"], ours["drafted_network_s"]) == (3.0, 5.0)
    assert (rival["drafted_s"], rival["drafted_network_s"]) == (None, None)
    assert (ours["tasks"], ours["estimate_s"], ours["build_s"]) == (2, 3.0, 30.0)
    table = summarise(result_rows(cells)).set_index("policy")
    assert table.speedup.to_dict() == {"ours": 10.0, "metaschedule": 1.0}
    assert table.network_over_rival["ours"] == 0.25
    assert table.drafted_network_s["ours"] == 5.0
    assert table.seeds.tolist() == [1, 1]


def test_what_is_never_reached_takes_for_ever_and_what_was_not_timed_is_not_known(cells):
    slow = [point("ours", 2.0, 2, 4.1)]
    given = {"start_s": 3.0, "drafted_s": 3.0, "points": slow}
    never = Cell(network="tiny", policy="ours", seed=0, run=cells[0].run, **given)
    table = summarise(result_rows([never, cells[1]])).set_index("policy")
    assert table.seconds_to_rival["ours"] == float("inf")
    assert table.speedup["ours"] == 0.0
    alone = Cell(network="tiny", policy="ours", seed=0, run=cells[0].run)
    assert result_rows([alone])[0]["seconds_to_rival"] is None
    assert prefix_rows([alone]) == []


def test_the_draft_of_a_run_that_begins_with_it_counts_once(cells):
    """1 s of import, then the run: 2 s of draft, and a trial in each of the next two."""
    late = [POINTS[0], point("ours", 3.0, 1, 4.0), point("ours", 4.0, 2, 1.0)]
    run = cells[0].run
    own = Cell(
        network="tiny", policy="ours", seed=0, run=run, start_s=1.0, drafted_s=3.0, points=late
    )
    assert result_rows([own])[0]["seconds_to_rival"] == own.to_rival_s == 4.0
    assert result_rows([own])[0]["drafted_s"] == 3.0
    assert [row["seconds"] for row in prefix_rows([own])] == [3.0, 4.0, 5.0]
    fast = [point("ours", 0.0, 0, 4.0), *late[1:]]
    whole = Cell(
        network="tiny", policy="ours", seed=0, run=run, start_s=1.0, drafted_s=3.0, points=fast
    )
    assert whole.to_rival_s == 3.0  # by the draft alone


def test_a_run_that_began_with_a_draft_has_one_of_all_that_it_tunes(cells):
    run = cells[0].run
    rows = [{"task": name, "how": "drafted"} for name in ("conv_a", "dense_b", "copy_c")]
    for begun, itself in ((0, False), (1, False), (2, True), (3, True)):
        (run.folder / "drafted").mkdir(exist_ok=True)
        write_json(run.folder / "drafted" / "drafted.json", rows[:begun])
        assert drafts_first(run) == itself


def test_prefixes_are_relative_to_the_rivals_latency_and_seconds(cells):
    first, second, third, theirs = prefix_rows(cells)
    assert (first["seconds"], first["share"], first["over_rival"]) == (3.0, 3 / 40, 1.25)
    assert (second["seconds"], second["over_rival"]) == (4.0, 1.0)
    assert (third["share"], third["over_rival"]) == (5 / 40, 0.25)
    assert (theirs["policy"], theirs["seconds"], theirs["share"]) == ("metaschedule", 20.0, 0.5)


def test_a_curve_begins_when_all_tuned_tasks_have_a_program(tmp_path):
    """dense_b is tuned but was not tried; copy_c has no arithmetic and is not waited for."""
    assert read_network_run(fabricate(tmp_path / "part", OURS[:1])).curve is None
    curve = read_network_run(fabricate(tmp_path / "all", OURS)).curve
    assert (curve.trial.tolist(), curve.best_s.tolist()) == ([2], [3.0])


def test_contenders_are_relative_to_ours(tmp_path):
    failed = {"name": "compile", "label": "compile", "error": "no compiler"}
    entries = [contender("ours", 2.0), contender("eager", 5.0), failed]
    run = read_network_run(fabricate(tmp_path / "run", OURS, contenders=entries))
    ours, eager, compiled = baseline_rows("tiny", run, "ours")
    assert (ours["over_ours"], eager["over_ours"]) == (1.0, 2.5)
    assert eager["ready_s"] == 3.0
    assert compiled == {"network": "tiny", "contender": "compile", "error": "no compiler"}


ROWS = [("a", 0.5, 1.0), ("b", 0.5, 4.0), ("a", 0.25, 6.0), ("b", 0.75, 16.0)]
TRIALS = [Trial(**trial(n, *row)) for n, row in enumerate(ROWS, 1)]


def task(name, tuned=True):
    return SimpleNamespace(name=name, tuned=tuned)


def built(t_s, over):
    return Point(whose="ours", t_s=t_s, measured=known(TRIALS, t_s), median_s=over, rival_s=1.0)


def test_the_grid_has_each_state_once():
    # of 16 s: after 1 s (one program), 2 s (still one), 4 s (two), 8 s (three), the end (four)
    assert grid(TRIALS, (1 / 16, 1 / 8, 1 / 4, 1 / 2), after_s=0.0) == [0.0, 1.0, 4.0, 8.0, 16.0]
    assert grid(TRIALS, (1 / 8, 1 / 2), after_s=4.0) == [4.0, 8.0, 16.0]
    assert grid([], (1 / 2,), after_s=0.0) == [0.0]


def test_a_network_is_complete_with_all_tuned_tasks_and_settled_with_its_last_improvement():
    assert complete(TRIALS, [task("a"), task("b"), task("c", tuned=False)]) == 4.0
    assert complete(TRIALS, [task("a"), task("c")]) == float("inf")
    assert settled(TRIALS) == 6.0  # the fourth program is slower than the second


@pytest.mark.parametrize(("over", "reached"), [(0.5, True), (1.0, True), (1.01, False)])
def test_reached_is_at_or_below_the_rival(over, reached):
    assert built(1.0, over).reached is reached


def test_a_failed_build_reaches_nothing():
    failed = Point(whose="ours", t_s=1.0, measured=1, rival_s=1.0, error="no compiler")
    assert not failed.reached
    assert failed.over_rival is None


def test_halving_ends_at_the_first_hit_and_builds_nothing_twice():
    asked = []

    def measure(t_s):
        asked.append(t_s)
        return built(t_s, 0.9 if t_s >= 5.0 else 1.1)

    points = [built(0.0, 2.0), built(2.0, 1.5), built(10.0, 0.8), built(16.0, 0.7)]
    found = halved(points, measure, lambda t_s: int(10 * t_s))
    assert asked == [6.0, 4.0, 5.0]
    assert [p.t_s for p in found if p.reached] == [6.0, 5.0]
    points = [built(0.0, 2.0), built(16.0, 0.8)]
    asked = []

    def measure(t_s):
        asked.append(t_s)
        return built(t_s, 1.1)

    halved(points, measure, lambda t_s: known(TRIALS, t_s))
    # 8 s: three programs, slower; 12 s and 14 s: the same three
    assert asked == [8.0]


@pytest.mark.parametrize("medians", [(0.5, 0.4), (2.0, 1.5)])
def test_nothing_is_halved_where_the_draft_is_enough_or_nothing_is(medians):
    points = [built(t_s, over) for t_s, over in zip((0.0, 16.0), medians, strict=True)]
    assert halved(points, pytest.fail, pytest.fail) == []


@pytest.fixture
def run(tmp_path):
    """Measured after 1, 3 and 5 s, failed after 2; a kill left a record that no line tells of."""
    rows = [
        trial(1, "a", 0.5, 1.0),
        trial(2, "b", 0.0, 2.0, error="run_error"),
        trial(3, "b", 0.25, 3.0),
        trial(4, "a", 0.125, 5.0),
    ]
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = [[0, [[], [s], {}, []]] for s in (0.5, 0.75, 0.25, 0.125)]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "database_tuning_record.json").write_text(text)
    (tmp_path / "database_workload.json").write_text("workloads\n")
    return tmp_path


def costs(place):
    lines = (place / "database_tuning_record.json").read_text().splitlines()
    return [json.loads(line)[1][1][0] for line in lines]


@pytest.mark.parametrize(
    ("until_s", "wanted"), [(0.0, []), (1.0, [0.5]), (4.9, [0.5, 0.25]), (9, [0.5, 0.25, 0.125])]
)
def test_records_until_a_time(run, tmp_path, until_s, wanted):
    assert copy_records(run, until_s, tmp_path / "copy") == len(wanted)
    assert costs(tmp_path / "copy") == wanted
    assert (tmp_path / "copy" / "database_workload.json").is_file() == bool(wanted)


def test_a_database_that_lacks_measurements_is_refused(run, tmp_path):
    (run / "database_tuning_record.json").write_text("")
    with pytest.raises(DataError, match="1 measurements of the journal have no record"):
        copy_records(run, 2.0, tmp_path / "copy")
