"""Our model behind TVM's own evolutionary search."""

from dataclasses import replace

import numpy as np
import pytest

from pruner.tune.metaschedule import cost_model, session
from pruner.tune.tvm_import import load_tvm
from tests.tune.metaschedule.test_strategy import cpu, opened

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def measured(module):
    """Space, context, decision vectors and TVM's candidates of them."""
    ms = load_tvm().meta_schedule
    space, context = opened(module, cpu())
    rows = space.sample(96, np.random.default_rng(0))
    candidates = [ms.MeasureCandidate(one, []) for one in space.instantiate(rows)]
    return space, context, rows, candidates


def result(seconds):
    ms = load_tvm().meta_schedule
    return ms.runner.RunnerResult([seconds], None)


def test_before_any_measurement_it_orders_as_the_analyzer_does(measured):
    space, context, rows, candidates = measured
    scores = cost_model(seed=0).predict(context, candidates)
    assert scores.shape == (96,)
    assert scores.dtype == np.float64
    assert ((scores > 0) & (scores < 1)).all()
    np.testing.assert_array_equal(np.argsort(scores), np.argsort(space.draft_score(rows)))


class Stumbling:
    """A context whose first draws raise, as some do on tensor cores."""

    def __init__(self, context, fails):
        self.context, self.left = context, fails

    def __getattr__(self, name):
        return getattr(self.context, name)

    def generate_design_space(self):
        self.left -= 1
        if self.left >= 0:
            raise load_tvm().s_tir.ScheduleError("An IR\nError message: not a stage pipeline")
        return self.context.generate_design_space()


@pytest.mark.parametrize(("fails", "alike"), [(2, False), (99, True)])
def test_spaces_that_stop_tvm_are_drawn_again(measured, monkeypatch, fails, alike):
    _, context, _, candidates = measured
    task, told = session.MetaScheduleTask.of(context), []
    task = replace(task, context=Stumbling(task.context, fails), log=told.append)
    monkeypatch.setattr(session.MetaScheduleTask, "of", lambda _: task)
    scores = cost_model(seed=0).predict(context, candidates)
    assert (len(np.unique(scores)) == 1) == alike
    assert told == ["main: all programs score alike: not a stage pipeline"] * alike


def test_it_learns_from_results(measured):
    _, context, rows, candidates = measured
    seconds = 1e-3 * (1 + rows[:, 8])  # a factor of a tile; the analyzer has the reverse
    model = cost_model(seed=0, prior=0)
    for batch in (slice(0, 24), slice(24, 48), slice(48, 72)):
        model.update(context, candidates[batch], [result(s) for s in seconds[batch]])
    unseen = slice(72, 96)
    learned = order(model.predict(context, candidates[unseen]), -seconds[unseen])
    drafted = order(cost_model(seed=0).predict(context, candidates[unseen]), -seconds[unseen])
    assert learned > max(0.4, drafted)


def order(scores, truth):
    """Rank correlation."""
    ranks = [np.argsort(np.argsort(values)) for values in (scores, truth)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_scores_of_one_round_compare(measured):
    _, context, _, candidates = measured
    model = cost_model(seed=0)
    model.update(context, candidates[:16], [result(1e-3 * (1 + n)) for n in range(16)])
    whole = model.predict(context, candidates)
    np.testing.assert_allclose(model.predict(context, candidates[40:60]), whole[40:60], rtol=1e-5)


def test_mutations_that_no_vector_holds_get_a_score(measured):
    ms = load_tvm().meta_schedule
    space, context, _, candidates = measured
    mutator = ms.mutator.MutateParallel(max_jobs_per_core=16)
    mutator._initialize_with_tune_context(context)
    changed = mutator.apply(candidates[0].sch.trace)
    design = replace(next(iter(space.spaces)).design, trace=changed)
    other = ms.MeasureCandidate(design.replay(design.vector(changed), 1), [])
    scores = cost_model(seed=0).predict(context, [candidates[0], other, *candidates[1:9]])
    assert scores[0] == scores[1]


def test_tvms_evolutionary_search_tunes_with_it(module, tmp_path):
    from tests.tune.metaschedule.fakes import measuring, ms

    fakes = measuring()
    search = ms.search_strategy.EvolutionarySearch(
        population_size=24, init_min_unmeasured=8, genetic_num_iters=1
    )
    database = ms.tune_tir(
        module, cpu(), str(tmp_path), 12, num_trials_per_iter=6, strategy=search,
        cost_model=cost_model(seed=0), num_tuning_cores=1, seed=1, **fakes,
    )  # fmt: skip
    assert len(database) == len(fakes["builder"].modules) == 12
    (log,) = (tmp_path / "logs").glob("*task_0_main.log")
    lines = log.read_text(encoding="utf-8").splitlines()
    told = [lines[n + 1].split("\t")[1].split() for n, text in enumerate(lines) if "Scores" in text]
    assert len(told) == 2
    assert all(0 < float(score) < 1 for scores in told for score in scores)
    assert all(len(set(scores)) > 1 for scores in told)
