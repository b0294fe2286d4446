"""Boxes of steps against a clock that the steps themselves move."""

import fcntl
import json
import signal
import sys
from dataclasses import dataclass, field, replace

import pytest
import yaml

from experiments.common.comparison import (
    Box,
    Comparison,
    Ended,
    Step,
    Times,
    archive_broken,
    fair_share_s,
    run_command,
    started,
    taken_up,
)
from pruner.cli.shared.known import composed
from pruner.errors import PrunerError
from pruner.files import LOCK_FILE, write_json
from tests.study.network.fabricated import trial

KINDS = {"short": 10.0, "long": 30.0}


class Toy(Comparison):
    boxes = ()


@dataclass
class World:
    """Steps take what ``takes`` says (seconds), no longer than their limit; ``fails`` fail."""

    folder: object
    takes: dict = field(default_factory=dict)
    fails: tuple = ()
    partly: tuple = ()  # leave their file, and say that parts of it came to nothing
    now: float = 0.0
    began: list = field(default_factory=list)
    told: list = field(default_factory=list)

    def step(self, name, kind="short", **more):
        return Step(name=name, words=[name], leaves=self.folder / f"{name}.json", kind=kind, **more)

    def run(self, step, share_s, limit_s):
        self.began.append((step.name, share_s, limit_s))
        needed = self.takes[step.name]
        self.now += min(needed, limit_s)
        if needed > limit_s:
            return Ended(code=None, line="")
        if step.name in self.fails:
            return Ended(code=1, line="error: broken")
        write_json(step.leaves, {})
        return Ended(code=3 if step.name in self.partly else 0, line="{}")

    def times(self):
        return Times(self.folder / "seconds.json", KINDS)

    def toy(self, boxes, after=lambda box: None):
        found = Toy(self.folder, self.folder, KINDS, log=self.told.append, clock=lambda: self.now)
        found.boxes, found.run, found.after = list(boxes), self.run, after
        return found

    def boxes(self, *boxes):
        self.toy(Box(steps=lambda s=steps: s, **more) for steps, more in boxes).run_all()
        return [name for name, _, _ in self.began]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_steps_share_a_box_by_what_they_are_expected_to_take(world):
    world.takes = {"a": 5, "b": 50}
    steps = [world.step("a", budget="x"), world.step("b", "long", budget="x")]
    world.boxes((steps, {"name": "x", "seconds": 80}))
    # 10 and 30 expected: of 80 s a quarter; then all of the 75 that a has left
    assert world.began == [("a", 20.0, 80.0), ("b", 75.0, 75.0)]


def test_what_takes_no_budget_takes_what_it_takes_and_the_others_share_the_rest(world):
    shared = [world.step("a", budget="x"), world.step("b", "long", budget="x")]
    fixed = world.step("c")  # 10 s
    # of 50 s 10 are the fixed one's; of the rest a quarter
    assert fair_share_s([*shared, fixed], world.times(), 50.0) == 10.0
    # 10 s and half of what a and b should have are more than 25 s: c is not reckoned with
    assert fair_share_s([*shared, fixed], world.times(), 25.0) == 25.0 / 4
    # nor is b, where a would get less than half of its 10 s
    assert fair_share_s(shared, world.times(), 15.0) == 15.0
    assert fair_share_s([fixed, *shared], world.times(), 50.0) == 50.0
    assert fair_share_s(shared, world.times(), float("inf")) == float("inf")


def test_what_a_box_uses_too_much_the_next_one_lacks(world):
    """A command that is asked to end may take some seconds to do so."""
    world.takes = {"a": 1, "b": 1}
    one, two = world.step("a"), world.step("b")
    run = world.run

    def slow(step, share_s, limit_s):
        ended = run(step, share_s, limit_s)
        world.now += 12
        return ended

    world.run = slow
    world.boxes(([one], {"name": "x", "seconds": 10}), ([two], {"name": "y", "seconds": 20}))
    assert [limit for _, _, limit in world.began] == [10, 17]


def test_what_comes_after_a_box_is_called_after_each(world):
    world.takes = {"a": 1}
    seen = []
    steps = [world.step("a")]
    boxes = [Box(name=name, steps=lambda: steps, seconds=5) for name in ("x", "y")]
    world.toy(boxes, after=lambda box: seen.append((box.name, world.now))).run_all()
    assert seen == [("x", 1.0), ("y", 1.0)]


def test_what_a_box_does_not_use_the_next_one_gets(world):
    world.takes = {"a": 15, "b": 1, "c": 1}
    one, two, three = (world.step(name) for name in "abc")
    boxes = [([s], {"name": s.name, "seconds": 20}) for s in (one, two, three)]
    world.boxes(*boxes)
    assert [limit for _, _, limit in world.began] == [20, 25, 44]


def test_a_box_that_is_over_ends_its_step_and_takes_no_other(world):
    world.takes = {"a": 99, "b": 1, "c": 1}
    boxes = ([world.step("a"), world.step("b")], {"name": "x", "seconds": 20, "least_s": 1})
    assert world.boxes(boxes, ([world.step("c")], {"name": "y", "seconds": 5})) == ["a", "c"]
    assert world.now == 21
    assert any("not begun: b" in line for line in world.told)
    assert world.times().last_s(world.step("a")) is None  # it did not end by itself


def test_what_fails_costs_itself_and_what_needs_it(world):
    world.takes, world.fails = dict.fromkeys("abc", 1), ("a",)
    a = world.step("a")
    steps = [a, world.step("b", needs=(a,)), world.step("c")]
    assert world.boxes((steps, {"name": "x"})) == ["a", "c"]
    assert "a: exit code 1: error: broken, 1 s" in world.told
    assert "b: left out, not done: a" in world.told
    world.fails = ()
    assert world.boxes((steps, {"name": "x"})) == ["a", "c", "a", "b"]  # c is done


def test_what_came_to_nothing_in_parts_is_done_and_its_seconds_are_kept(world):
    world.takes, world.partly = dict.fromkeys("ab", 7), ("a",)
    a = world.step("a")
    assert world.boxes(([a, world.step("b", needs=(a,))], {"name": "x"})) == ["a", "b"]
    assert "a: done, but parts of it came to nothing, 7 s" in world.told
    assert world.times().last_s(a) == 7


def test_an_interrupted_step_is_not_done(world):
    step = world.step("a")
    write_json(step.leaves, {"interrupted": True})
    assert not step.done
    write_json(step.leaves, {})
    assert step.done


def test_a_budget_is_the_seconds_of_a_limited_box_and_of_earlier_starts(world):
    step = world.step("a", budget="budget.seconds")
    assert step.within(61.9) == ["a", "budget.seconds=61"]
    assert step.within(float("inf")) == ["a"]
    assert world.step("b").within(5.0) == ["b"]
    step = world.step("a", budget="budget.seconds", spent_s=30.5)
    assert step.within(10.0) == ["a", "budget.seconds=40"]


def test_a_step_took_the_seconds_of_earlier_starts_too(world):
    world.takes = {"a": 5}
    world.boxes(([world.step("a", budget="x", spent_s=30.5, size=4)], {"name": "x"}))
    (row,) = world.times().rows
    assert (row["size"], row["seconds"]) == (4.0, 35.5)


def test_what_several_commands_write_is_kept_for_each(world):
    world.takes = {"a": 1, "b": 1}
    made = world.folder / "made.json"

    def run(step, share_s, limit_s):
        write_json(made, {"by": step.name})
        return Ended(code=0, line="{}")

    world.run = run
    kept = [world.folder / "kept" / f"{name}.json" for name in "ab"]
    steps = [Step(name=path.stem, words=[], leaves=path, kind="short", made=made) for path in kept]
    world.boxes((steps, {"name": "x"}))
    assert [json.loads(path.read_text())["by"] for path in kept] == ["a", "b"]
    assert all(step.done for step in steps)


def test_expected_seconds_come_from_steps_of_the_kind(world):
    times = world.times()
    assert times.expected_s(world.step("a", size=3)) == 30  # the guess
    times.keep(world.step("b", size=2), 8.0)
    times.keep(world.step("c", size=6), 40.0)
    assert times.expected_s(world.step("a", size=3)) == 18  # 48 s for a size of 8
    assert times.last_s(world.step("b")) == 8.0


def test_the_plan_has_every_step_that_is_left_once(world):
    done, left = world.step("a"), world.step("b", "long")
    write_json(done.leaves, {})
    boxes = [Box(name=name, steps=lambda: [done, left]) for name in ("x", "y")]
    assert world.toy(boxes).plan() == [{"box": "x", "step": "b", "minutes": 0.5}]


def run(tmp_path, code, **more):
    log = tmp_path / "logs" / "one.log"
    return run_command([sys.executable, "-c", code], log, place=tmp_path, **more)


def test_a_command_ends_with_code_and_last_line_in_its_environment_and_limit(tmp_path):
    ended = run(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    assert (ended.code, ended.line) == (3, "two")
    assert run(tmp_path, "").line == "no reason given"
    code = "import os; print(os.environ['OF_THIS_TEST'])"
    assert run(tmp_path, code, environment={"OF_THIS_TEST": "here"}).line == "here"
    # ignored behind a shell's &, an interrupt would be waited for
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert run(tmp_path, "import time; time.sleep(60)", limit_s=0.1).code is None
    signal.signal(signal.SIGINT, before)


def test_a_step_starts_a_command_of_this_project_or_a_script(tmp_path):
    python = sys.executable
    assert started(["tune", "a=1"], tmp_path) == [python, "-m", "pruner.cli", "tune", "a=1"]
    assert started(["x/run.py", "a=1"], tmp_path) == [python, str(tmp_path / "x/run.py"), "a=1"]


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
