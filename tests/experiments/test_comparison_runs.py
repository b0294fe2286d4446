"""Runs that were ended go on; what broke before anything could be kept is put aside."""

import fcntl
import json
from dataclasses import replace

import pytest
import yaml

from experiments.common.comparison import Step, archive_broken, taken_up
from pruner.cli.shared.known import composed
from pruner.errors import PrunerError
from pruner.files import LOCK_FILE, write_json
from tests.study.network.fabricated import trial


@pytest.fixture
def step(tmp_path):
    folder = tmp_path / "tune" / "one"
    return Step(
        name="one",
        words=["tune", "workload=matmul", "run_id=one"],
        leaves=folder / "metrics.json",
        kind="tune",
        budget="budget.seconds",
    )


def test_a_run_that_was_ended_goes_on_with_the_seconds_it_has_used(step):
    folder = step.leaves.parent
    assert taken_up(step) is step  # nothing was begun
    folder.mkdir(parents=True)
    assert taken_up(step) is step  # nothing that could be gone on with
    (folder / "state.npz").touch()
    rows = [trial(n, "a", 1.0, 7.0 * n) for n in (1, 2)]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = taken_up(step)
    assert again.words == ["tune", f"resume={folder}"]
    assert again.within(10.0)[-1] == "budget.seconds=24"
    write_json(step.leaves, {"interrupted": True})
    assert taken_up(step).words == again.words
    write_json(step.leaves, {})
    assert taken_up(step) is step  # done


def test_a_run_that_only_compiles_goes_on_from_its_journal(step):
    folder, compiles = step.leaves.parent, replace(step, words=[*step.words, "compile_only=true"])
    folder.mkdir(parents=True)
    assert taken_up(compiles) is compiles
    row = json.dumps({**trial(1, "a", 1.0, 7.0), "compiled_only": True})
    (folder / "trials.jsonl").write_text(f"{row}\n")
    assert taken_up(compiles).within(10.0) == ["tune", f"resume={folder}", "budget.seconds=10"]
    assert taken_up(step) is step  # one that measures needs its state, too


def test_a_run_that_lacks_an_option_of_today_begins_anew(step):
    folder = step.leaves.parent
    folder.mkdir(parents=True)
    (folder / "state.npz").touch()
    config = composed("tune", ["workload=matmul"])
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert taken_up(step) is not step
    del config["precision"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert taken_up(step) is step
    archive_broken(step)
    assert not folder.exists()


def test_only_what_begins_anew_puts_aside_what_is_there(step):
    folder = step.leaves.parent
    archive_broken(step)  # nothing to put aside
    folder.mkdir(parents=True)
    (folder / "state.npz").touch()
    archive_broken(taken_up(step))
    assert folder.is_dir()
    archive_broken(step)
    assert not folder.exists()
    assert [path.name.startswith("one-broken-") for path in folder.parent.iterdir()] == [True]


def test_a_run_that_somebody_works_in_is_not_put_aside(step):
    folder = step.leaves.parent
    folder.mkdir(parents=True)
    with (folder / LOCK_FILE).open("w") as other:  # as a process does whose campaign was killed
        other.write("1 elsewhere\n")
        other.flush()
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PrunerError, match="process 1 on elsewhere works in it"):
            archive_broken(step)
    assert folder.is_dir()
