"""Runs of ``tune.py`` as steps: what was ended goes on, what broke is put aside."""

import time
from dataclasses import replace

from pruner.study.steps.command import quoted
from pruner.study.steps.step import Step
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.snapshot import SNAPSHOT_FILE

RESUME = "resume="


def taken_up(step: Step) -> Step:
    """The step as it has to be started now: a run that was ended goes on, with a budget of its own.

    It leaves its file in its run folder. What was begun with a budget of seconds has used those
    that its journal tells.
    """
    folder = step.leaves.parent
    if step.done or not (folder / SNAPSHOT_FILE).is_file():
        return step
    trials = read_trials(folder / JOURNAL_FILE)
    spent_s = max((trial.elapsed_s for trial in trials), default=0.0)
    return replace(step, words=[step.words[0], f"{RESUME}{quoted(folder)}"], spent_s=spent_s)


def put_aside(step: Step) -> None:
    """Rename the run folder that a broken start left, where the step begins anew in it."""
    folder = step.leaves.parent
    begins = f"run_id={folder.name}" in step.words
    if begins and folder.exists():
        folder.rename(folder.with_name(f"{folder.name}-broken-{int(time.time())}"))
