"""Runs of ``tune.py`` as steps: what was ended goes on, what broke is put aside."""

import time
from dataclasses import replace
from pathlib import Path

import yaml

from pruner.files import held
from pruner.places import conf_folder
from pruner.study.steps.command import quoted
from pruner.study.steps.step import Step
from pruner.tune.run.journal import JOURNAL_FILE, read_trials
from pruner.tune.run.snapshot import SNAPSHOT_FILE

RESUME, COMPILE_ONLY = "resume=", "compile_only=true"
CONFIG_FILE = "config.yaml"
_NO_OPTIONS = {"defaults", "hydra", "sweep", "experiment"}  # of conf/tune.yaml: no part of a run


def taken_up(step: Step) -> Step:
    """The step as it has to be started now: a run that was ended goes on, with a budget of its own.

    It leaves its file in its run folder. A run of a version that lacked an option of today would be
    refused every time; it begins anew. What was begun with a budget of seconds has used those
    that its journal tells. A run that only compiles has nothing but its journal to go on from, and
    counts its seconds anew.
    """
    folder, compiles = step.leaves.parent, COMPILE_ONLY in step.words
    kept = JOURNAL_FILE if compiles else SNAPSHOT_FILE
    if step.done or not (folder / kept).is_file() or _lacks_options(folder):
        return step
    trials = [] if compiles else read_trials(folder / JOURNAL_FILE)
    spent_s = max((trial.elapsed_s for trial in trials), default=0.0)
    return replace(step, words=[step.words[0], f"{RESUME}{quoted(folder)}"], spent_s=spent_s)


def _lacks_options(folder: Path) -> bool:
    """Whether the run was begun before ``tune.py`` had all its options of today."""
    path, command = folder / CONFIG_FILE, conf_folder() / "tune.yaml"
    if not path.is_file():
        return False
    known = yaml.safe_load(command.read_text(encoding="utf-8"))
    groups = {name for one in known["defaults"] if isinstance(one, dict) for name in one}
    options = {name for name in groups | known.keys() if " " not in name} - _NO_OPTIONS
    try:
        return bool(options - set(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except (TypeError, yaml.YAMLError):  # damaged
        return True


def put_aside(step: Step) -> None:
    """Rename the run folder that a broken start left, where the step begins anew in it.

    Raises:
        PrunerError: a process still works in it, as one does whose campaign was killed.
    """
    folder = step.leaves.parent
    begins = f"run_id={folder.name}" in step.words
    if begins and folder.exists():
        with held(folder):
            folder.rename(folder.with_name(f"{folder.name}-broken-{int(time.time())}"))
