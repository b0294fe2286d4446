"""``pruner leaderboard``: check a submission, or rank all submissions."""

import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from pruner.cli.shared.options import build, own_models
from pruner.cli.shared.output import say
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.records import record_root
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.errors import PrunerError, check_chosen
from pruner.files import load_metrics, write_text
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.analyzer.choice import AnalyzerChoice
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.predict import scored_tasks
from pruner.models.ranker import NeuralRanker
from pruner.models.training.fit import checkpoint_file, ranker_of
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.program.replay import Definitions, definitions_of, find_definition
from pruner.study.adaptation.context import seen_workloads
from pruner.study.leaderboard import (
    RANKED_BY,
    SUBMISSION_FILE,
    ScoreTask,
    Submission,
    Track,
    as_markdown,
    chance,
    check_submission,
    checked_programs,
    judged,
    load_submission,
    load_tracks,
    ranking,
    save_submission,
    submissions,
    write_scores,
)

BENCHMARK, ENTRIES, PAGE = "benchmark.yaml", "entries", "README.md"
SAID = ("authors", "source", "machine", "notes", "learned_from")  # fields that authors fill in
# experiments/draft/README.md: the form of the terms and their rates are no test on unseen records.
IN_VIEW = "no rates fitted; its terms were chosen with records of these platforms in view"
_BEGIN, _END = "<!-- {track}: begin -->", "<!-- {track}: end -->"


def leaderboard(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    scored = [name for name in ("checkpoint", "model") if config.get(name) is not None]
    if len(scored) > 1:
        raise PrunerError("checkpoint= and model= each score the programs; leave one of them out")
    if scored and config.entry is None:
        raise PrunerError("add entry=FOLDER, the folder of the submission")
    if config.check and config.entry is not None:
        raise PrunerError("check=true compares the page with all entries; leave entry= out")
    folder = Path(config.folder)
    tracks = load_tracks(folder / BENCHMARK)
    check_chosen("track", [config.track], tracks)
    track, root = tracks[config.track], record_root(config.data)
    say(f"reading the test programs of {track.name} ...")
    tasks = checked_programs(root, track)
    say(f"track {track.name}: {len(tasks)} test tasks, {sum(map(len, tasks)):,} programs")
    if config.entry is None:
        return _ranked(config, folder, track, tasks)
    entry = Path(config.entry)
    if scored:
        _fill(config, entry, track, tasks, root)
    row, rows = judged(entry, track, tasks), [chance(tasks)]
    for other in submissions(folder / ENTRIES, track):
        if other.resolve() != entry.resolve():
            try:
                rows.append(judged(other, track, tasks))
            except PrunerError as error:
                say(f"left out of the ranking: {error}")
    rank = 1 + sum(other[RANKED_BY] > row[RANKED_BY] for other in rows)
    say(as_markdown([row], rank))
    return {**row, "track": track.name, "rank": rank, "of": len(rows) + 1, "folder": str(entry)}


def _ranked(
    config: DictConfig, folder: Path, track: Track, tasks: Sequence[TaskRecords]
) -> dict[str, Any]:
    rows = ranking(folder / ENTRIES, track, tasks)
    table = as_markdown(rows)
    page = folder / PAGE
    text = page.read_text(encoding="utf-8")
    begin, end = (mark.format(track=track.name) for mark in (_BEGIN, _END))
    if begin not in text or end not in text:
        raise PrunerError(f"{page}: no place for the table: {begin} and {end}")
    head, rest = text.split(begin, 1)
    fresh = f"{head}{begin}\n{table}{end}{rest.split(end, 1)[1]}"
    if config.check and fresh != text:
        raise PrunerError(f"{page} differs from the entries; run pruner leaderboard")
    if not config.check:
        write_text(page, fresh)
    say(table)
    found = {"track": track.name, "entries": len(rows) - 1, "page": str(page)}
    return {**found, "best": rows[0]["entry"]}


def _fill(
    config: DictConfig,
    entry: Path,
    track: Track,
    tasks: Sequence[TaskRecords],
    root: RecordRoot,
) -> None:
    index = definitions_of(root.path)
    if config.checkpoint is not None:
        info, score, known = _learned(config, index)
        test = {records.key.identity: records.key.task for records in reversed(tasks)}
        seen = seen_workloads(info, root, [records.key for records in tasks], ON_STDERR)
        if found := [task for identity, task in test.items() if identity in seen]:
            raise PrunerError(
                f"checkpoint={config.checkpoint}: it learned from {len(found)} of the {len(test)} "
                f"test workloads of {track.name}, the first {min(found)}; train it with the "
                f"track's split: train.py split={track.split} split.seed={track.seed}"
            )
    else:
        score, known = _unlearned(config, index)
    known |= {name: config[name] for name in SAID if config[name] is not None}
    if not known["learned_from"]:
        raise PrunerError(
            f"checkpoint={config.checkpoint}: its training records are not listed; add "
            "\"learned_from='...'\""
        )
    if (entry / SUBMISSION_FILE).is_file():
        submission = replace(load_submission(entry), **known)
    else:
        submission = Submission(**({"authors": "", "source": ""} | known))
    check_submission(entry, submission)  # before anything takes minutes
    start = time.process_time()
    write_scores(entry, track, list(ON_STDERR.track(tasks, "scoring", len(tasks))), score)
    seconds = time.process_time() - start
    submission = replace(
        submission,
        scored_per_second=round(sum(map(len, tasks)) / max(seconds, 1e-9)),
        memory_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    )
    save_submission(entry, submission)


def _learned(
    config: DictConfig, index: Definitions | None
) -> tuple[CheckpointInfo, ScoreTask, dict[str, Any]]:
    path = checkpoint_file(Path(config.checkpoint))
    ranker, info = ranker_of(path, own_models(config.models.own))
    run: Mapping[str, Any] = load_metrics(path.parent) or {}
    parts = list(run.get("parts", {}).values())
    known: dict[str, Any] = {
        "notes": "",  # of an earlier model
        "model": info.model.name,
        "learned_from": ", ".join(
            f"{len(seen)} tasks of {platform}" for platform, seen in sorted(info.seen_tasks.items())
        )
        if info.says_seen
        else "",
        "fit_seconds": parts[0].get("fit_seconds") if parts else None,
        "parameters": sum(value.numel() for value in ranker.network.parameters())
        if isinstance(ranker, NeuralRanker)
        else None,
    }

    def score(records: TaskRecords) -> np.ndarray:
        (rows,) = scored_tasks(ranker, [records], info.dataflow, index)
        return rows.score.to_numpy(np.float64)

    return info, score, known


def _unlearned(config: DictConfig, index: Definitions | None) -> tuple[ScoreTask, dict[str, Any]]:
    choice = build(config.get("model"))
    if not isinstance(choice, AnalyzerChoice):
        raise PrunerError("model=symbolic enters without a checkpoint; others: give checkpoint=RUN")

    @cache
    def analyzer(platform: str) -> Analyzer:
        device = load_device(conf_folder() / "platform" / f"{platform}.yaml")
        return choice.scorer(conf_folder(), device)

    def score(records: TaskRecords) -> np.ndarray:
        dag = find_definition(records.workload_key, records.fused, records.steps, index)
        found = analyzer(records.key.platform).score_steps(dag, records.steps)
        return np.where(np.isfinite(found), found, np.nan)

    return score, {
        "model": f"symbolic, {choice.form}",
        "learned_from": "nothing",
        "notes": IN_VIEW,
        "fit_seconds": 0.0,
    }
