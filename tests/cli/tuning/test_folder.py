"""What a run that is gone on with may be given: more budget, also where it only drafted."""

import pytest

from pruner.cli.shared.options import build
from pruner.cli.shared.runs import save_config
from pruner.cli.tune import resumed
from pruner.errors import PrunerError
from pruner.tune.run.journal import JOURNAL_FILE
from tests.cli.outcome import composed, give_words


@pytest.fixture
def go_on(tmp_path, monkeypatch):
    """Begin a run with some words, and go on with it with others; the trials a task of a network,
    and the configuration."""

    def given(words):
        give_words(monkeypatch, *words)
        return composed("tune", *words)

    def run(first, *words):
        save_config(tmp_path, given(["network=resnet18", *first]))
        found = resumed(tmp_path, given(words))
        return build(found.effort).trials_per_task, found

    return run


@pytest.mark.parametrize(
    ("words", "trials_per_task"),
    [
        ([], 0),  # as it was: drafts what is left
        (["effort=quick"], 8),
        (["effort=normal"], 20),  # whose file says nothing of trials: nothing of draft's stays
        pytest.param(["budget.trials=9"], 20, marks=pytest.mark.slow),
        (["budget.seconds=60"], 20),
        pytest.param(["budget.trials=9", "effort=thorough"], 60, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_drafted_run_is_tuned_once_it_is_given_a_budget(go_on, words, trials_per_task):
    found, config = go_on(["effort=draft", "seed=3"], *words)
    assert found == trials_per_task
    assert (config.network, config.seed) == ("resnet18", 3)
    assert config.budget.trials == (9 if "budget.trials=9" in words else None)


def test_a_budget_for_nothing_is_still_refused(go_on):
    _, config = go_on(["effort=draft"], "effort=draft", "budget.trials=9")
    with pytest.raises(PrunerError, match=r"leave budget\.trials= out"):
        build(config.effort).budget(config.budget, None)


def test_a_run_that_measured_takes_more_effort_and_not_none(go_on, tmp_path):
    (tmp_path / JOURNAL_FILE).touch()
    assert go_on(["effort=quick"], "effort=thorough")[0] == 60
    assert go_on(["effort=quick"], "budget.trials=50")[0] == 8
    with pytest.raises(PrunerError, match="this run has measured programs; leave effort= out"):
        go_on(["effort=quick"], "effort=draft")
    with pytest.raises(PrunerError, match=r"leave out seed=4"):
        go_on(["effort=quick"], "effort=thorough", "seed=4")
