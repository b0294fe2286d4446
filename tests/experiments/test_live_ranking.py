"""experiments/live_ranking/run.py: what judges, what is learned when, the tests."""

import runpy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from pruner.cli.shared.known import read_fields
from pruner.data.tasks import TaskKey
from pruner.errors import PrunerError
from tests.paths import REPOSITORY

INF = float("inf")


class Space:
    """Of vectors with one decision: equal vectors are equal programs."""

    def keys(self, rows):
        return rows[:, 0]


@pytest.fixture(scope="module")
def item():
    return runpy.run_path(str(REPOSITORY / "experiments/live_ranking/run.py"))


def measured(item, programs, latency_s, batch=None):
    return item["Measured"](
        rows=np.array(programs)[:, None],
        latency_s=np.array(latency_s),
        batch=np.array(batch if batch is not None else [0] * len(programs)),
    )


def test_rounds_are_the_batches_in_their_order(item):
    run = measured(item, range(6), [1.0] * 6, batch=[0, 0, 0, 1, 3, 3])
    assert run.rounds == [slice(0, 3), slice(3, 4), slice(4, 6)]


def test_what_was_learned_from_or_failed_or_came_twice_does_not_judge(item):
    drawn = measured(item, [1, 2, 3, 4], [0.1, 0.2, INF, 0.4])
    found = measured(item, [4, 5, 6], [0.5, 0.6, 0.7])
    seen = np.array([[2], [6]])
    judges = item["Judges"].of([(True, drawn), (False, found)], Space(), seen)
    assert judges.rows[:, 0].tolist() == [1, 4, 5]
    assert judges.latency_s.tolist() == [0.1, 0.4, 0.6]
    assert judges.random.tolist() == [True, True, False]


def test_a_judgement_by_hand(item):
    """Random programs in two of three orders, searched ones all; the best of ten is the best."""
    judges = item["Judges"](
        rows=np.arange(6)[:, None],
        latency_s=np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        random=np.array([True, True, True, False, False, False]),
    )
    got = judges.judge(np.array([3.0, 1.0, 2.0, 0.3, 0.2, 0.1]))
    assert got == pytest.approx(
        {"pairwise_random": 2 / 3, "pairwise_searched": 1.0, "best_of_10": 1.0}
    )
    assert judges.chance() == pytest.approx(
        {"pairwise_random": 0.5, "pairwise_searched": 0.5, "best_of_10": 1.0}
    )


class Model:
    """Its score is minus how many programs it has learned from; none before the first."""

    def __init__(self):
        self.seen, self.ranker = 0, None

    def set_reference_population(self, key, population):
        assert population == "population"

    def learn(self, store):
        assert store.latency_s.numpy() == pytest.approx(np.arange(1.0, len(store) + 1))
        self.seen = len(store)
        self.ranker = SimpleNamespace(score=lambda judged, key: np.full(4, -float(self.seen)))


def test_every_judgement_comes_after_all_measurements_before_it_and_no_other(item, monkeypatch):
    """Batches of ten; the score says how many programs the model has learned from."""

    class Store:
        def __init__(self, parts):
            (self.part,) = parts
            self.latency_s = SimpleNamespace(numpy=lambda: self.part)

        def __len__(self):
            return len(self.part)

        @staticmethod
        def build(parts):
            return Store(parts)

    def part(key, learned, latency_s, line):
        assert learned.tolist() == line.tolist() == list(range(len(latency_s)))
        return latency_s

    scores = []
    module = item["judged_rows"].__globals__
    monkeypatch.setitem(module, "ProgramTable", Store)
    monkeypatch.setitem(module, "TaskPrograms", SimpleNamespace(of=part))

    def judge(score):
        scores.append(float(score[0]))
        return {}

    key = TaskKey(platform="p", task="t", workload_key="k", target="")
    rows = item["judged_rows"](
        {"method": "moa"},
        Model,
        key,
        ("population", SimpleNamespace(take=lambda line: line), None),
        SimpleNamespace(
            latency_s=np.arange(1.0, 61.0),
            rounds=[slice(low, low + 10) for low in range(0, 60, 10)],
        ),
        SimpleNamespace(judge=judge),
    )
    assert [row["trials"] for row in rows] == [10, 20, 50]
    assert scores == [-10.0, -20.0, -50.0]


def test_differences_of_two_methods_by_hand(item):
    """Two pairs, +.1 and +.3: mean .2, and one of four flips is as far up."""
    about = [{"workload": name, "seed": 0} for name in ("a", "b")]

    def rows(method, trials, values):
        return [
            pair | {"method": method, "trials": trials} | dict.fromkeys(item["METRICS"], value)
            for pair, value in zip(about, values, strict=True)
        ]

    table = pd.DataFrame(
        rows("chance", 0, [0.5, 0.5]) + rows("moa", 10, [0.6, 0.8]) + rows("none", 10, [0.7, 0.7])
    )
    tests = {(row["method"], row["other"]): row for row in item["test_rows"](table)}
    assert set(tests) == {(m, o) for m in ("moa", "none") for o in ("chance", "moa", "none")} - {
        ("moa", "moa"),
        ("none", "none"),
    }
    row = tests["moa", "chance"]
    assert (row["trials"], row["pairs"]) == (10, 2)
    assert row["pairwise_random_gain"] == pytest.approx(0.2)
    assert row["pairwise_random_p"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("words", "says"),
    [(("ways=[moo]",), "ways="), ((), "no run there; experiments/live/run.py makes it")],
)
def test_what_is_not_there_is_refused_in_a_line(item, tmp_path, words, says):
    given = read_fields(item["Options"], [f"out={tmp_path}", f"runs={tmp_path}", *words])
    with pytest.raises(PrunerError, match=says):
        item["run"](given)
