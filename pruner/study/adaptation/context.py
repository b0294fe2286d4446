"""The common ground of a comparison: tasks, labels and source model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import TaskSplit
from pruner.data.tasks import TaskKey
from pruner.errors import DataError, PrunerError
from pruner.features.dataflow import DataflowKind
from pruner.models.adaptation.base import Setting
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.model import RankingNetwork
from pruner.models.programs.dataset import RecordReader
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.reading import FilePrograms, ReadSpec
from pruner.models.registry import MODELS, ModelTable
from pruner.models.training.recipe import Start
from pruner.program.replay import definitions_of
from pruner.progress import Progress
from pruner.search.offline.adaptation_run import Quality
from pruner.search.offline.recorded import RecordedTask, recorded_task

_VALIDATED = 10  # one source task in so many chooses the source model's epoch

TrainSource = Callable[[ProgramTable, TaskSplit], Start]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a comparison.

    ``trials`` measured programs in all, ``batch`` a round, on ``tasks`` tuned tasks with at least
    ``least`` measured programs and, where there are such, a median latency of ``spread`` times the
    best; ``held_out`` tasks judge, ``labels`` are drawn from ``label_tasks`` others; an update
    takes at most ``max_steps`` gradient steps (None: as many as its method does);
    ``source_programs`` a source task, for methods that train on them again.
    """

    trials: int
    batch: int
    tasks: int
    least: int
    spread: float
    held_out: int
    label_tasks: int
    labels: Sequence[int | str]
    max_steps: int | None
    source_programs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AdaptationContext:
    """The data that all cells of a source and target share.

    ``held_out`` and ``labelled``: tasks of the target that are not tuned; ``source_held_out``: the
    tuned and held-out workloads on the source platform, None where it has none of them; ``start``
    is the source model, whose class is one of ``models``.
    """

    pools: Sequence[RecordedTask]
    held_out: ProgramTable
    labelled: ProgramTable
    start: Start
    source_store: ProgramTable | None
    source_held_out: ProgramTable | None
    models: ModelTable = field(default_factory=lambda: MODELS)

    def setting(self, seed: int) -> Setting:
        """The starting point of a method."""

        def network() -> RankingNetwork:
            made = self.start.info.model.build(self.models)
            assert isinstance(made, RankingNetwork), type(made)
            return made

        return Setting(
            make_network=network,
            source=self.start.ranker,
            source_store=self.source_store,
            seed=seed,
        )

    def source_quality(self) -> Quality | None:
        """Quality of the unadapted source model on its own platform."""
        store = self.source_held_out
        return None if store is None else Quality.of(self.start.ranker, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Tasks of the target by use."""

    tuned: tuple[TaskKey, ...]
    held_out: tuple[TaskKey, ...]
    labelled: tuple[TaskKey, ...]

    @property
    def unseen(self) -> frozenset[str]:
        """Workloads that the source model must not have seen."""
        return frozenset(key.identity for key in (*self.tuned, *self.held_out))


def choose_tasks(spreads: Mapping[TaskKey, float], budget: Budget, *, num_seen: int = 0) -> Chosen:
    """Divide tasks into tuned, held-out and labelled tasks, ordered by a hash.

    `spreads`: median latency / best of every usable task. Tasks below ``budget.spread``, whose
    programs are about equally fast, are tuned only where others are lacking: nothing can be won on
    them. Of few tasks about two of three are tuned. `num_seen`: tasks left out since a given model
    has seen their work. Raises DataError below three workloads, PrunerError where a tuned task
    would get no round.
    """
    unique = {key.identity: key for key in sorted(spreads, reverse=True)}
    order = sorted(unique.values(), key=lambda key: sha256(key.identity.encode()).hexdigest())
    if len(order) < 3:
        beside = f" beside {num_seen} whose work the checkpoint has seen" if num_seen else ""
        raise DataError(
            f"{len(order)} usable tasks of the target{beside}; tuning, judging and labels need one "
            "each" + ("; give a checkpoint that has seen fewer, or none" if num_seen else "")
        )
    order.sort(key=lambda key: spreads[key] < budget.spread)  # stable: the hash order stays
    num_tuned = min(budget.tasks, max(1, 2 * len(order) // 3 - 1))
    least = budget.batch * (num_tuned - 1) + 1
    if budget.trials < least:
        raise PrunerError(
            f"budget.trials={budget.trials}: {num_tuned} tasks take turns, {budget.batch} programs "
            f"a round; give {least} or more, or a smaller budget.tasks"
        )
    tuned, rest = order[:num_tuned], order[num_tuned:]
    rest.sort(key=lambda key: sha256(key.identity.encode()).hexdigest())
    judging = min(budget.held_out, max(1, len(rest) // 2))
    return Chosen(
        tuned=tuple(tuned),
        held_out=tuple(rest[:judging]),
        labelled=tuple(rest[judging:][: budget.label_tasks]),
    )


def prepare(
    root: RecordRoot,
    source: str,
    target: str,
    budget: Budget,
    *,
    analyzer: Analyzer,
    train: TrainSource,
    given: Start | None = None,
    dataflow: DataflowKind = "paper",
    draft: bool = False,
    cache: Path | None = None,
    models: ModelTable = MODELS,
    seed: int = 0,
    progress: Progress | None = None,
) -> AdaptationContext:
    """Read both platforms' records, choose tasks, and get or train the source model.

    `analyzer` drafts on the target. `train` gets the source's programs and a split whose test side
    holds the workloads that the source model must not see. `models`: its allowed classes.

    Raises DataError for missing records, too few tasks or programs, PrunerError for too few trials,
    or a given model that has seen workloads of platforms that are not here.
    """
    progress = progress or Progress()
    if given:
        dataflow = given.info.dataflow  # type: ignore[assignment]
        draft = given.ranker.reads_draft
    reader = RecordReader(root, ReadSpec(dataflow=dataflow, draft=draft, cache=cache))
    ours, theirs = (read_programs(reader, name, progress) for name in (source, target))
    seen = seen_workloads(given.info, root, {**ours, **theirs}, progress) if given else frozenset()
    spreads = spreads_of(theirs, budget, seen)
    num_seen = len(spreads_of(theirs, budget)) - len(spreads)
    chosen = choose_tasks(spreads, budget, num_seen=num_seen)
    check_rounds([len(theirs[key].latency_s) for key in chosen.tuned], budget)
    programs = ProgramTable.build(ours.values())
    start = given or train(programs, source_split(programs, chosen, seed))
    pools = pools_of(root, target, [theirs[key] for key in chosen.tuned], analyzer)
    judged = [n for n, key in enumerate(programs.keys) if key.identity in chosen.unseen]
    known = "has seen none of the first two"
    if not start.info.says_seen:
        known = "does not say all that it has seen"
    progress.log(
        f"{target}: {len(chosen.tuned)} tasks tuned, {len(chosen.held_out)} judge, labels "
        f"from {len(chosen.labelled)}; the source model {known}"
    )
    return AdaptationContext(
        pools=pools,
        held_out=ProgramTable.build(theirs[key] for key in chosen.held_out),
        labelled=ProgramTable.build(theirs[key] for key in chosen.labelled),
        start=start,
        source_store=_thinned(programs, chosen, budget.source_programs),
        source_held_out=programs.subset(programs.programs_of(judged)) if judged else None,
        models=models,
    )


def check_rounds(sizes: Sequence[int], budget: Budget) -> None:
    """Raise DataError where searches of half of the smallest task miss a first round."""
    least = min(sizes)
    if len(sizes) * (least // 2) <= budget.batch * (len(sizes) - 1):
        raise DataError(
            f"budget.batch={budget.batch}: a tuned task has {least} measured programs, of which "
            f"half are searched; give budget.least={2 * budget.batch}, or a smaller budget.batch"
        )


def spreads_of(
    tasks: Mapping[TaskKey, TaskPrograms], budget: Budget, seen: frozenset[str] = frozenset()
) -> dict[TaskKey, float]:
    """Median latency / best of tasks with enough programs whose work is not `seen`."""
    return {
        key: float(np.median(task.latency_s) / task.latency_s.min())
        for key, task in tasks.items()
        if len(task.latency_s) >= budget.least and key.identity not in seen
    }


def read_programs(
    reader: RecordReader, platform: str, progress: Progress
) -> dict[TaskKey, TaskPrograms]:
    """The featurised programs of a platform by task."""

    def watch(files: Iterable[FilePrograms], num: int) -> Iterable[FilePrograms]:
        return progress.track(files, f"reading {platform}", num)

    with Quarantine() as quarantine:
        return {task.key: task for task in reader.tasks([platform], quarantine, watch)}


def pools_of(
    root: RecordRoot, target: str, tasks: Sequence[TaskPrograms], analyzer: Analyzer
) -> list[RecordedTask]:
    """Pools of featurised tasks, whose records are read again for schedules and costs."""
    index, pools = definitions_of(root.path), []
    files = {file.task: file for file in root.task_files(target)}
    for task in tasks:
        with Quarantine() as quarantine:
            read = files[task.key.task].read(quarantine)
        records = next(records for records in read if records.key == task.key)
        pools.append(recorded_task(records, programs=task, analyzer=analyzer, tasks=index))
    return [pool for pool in pools if pool is not None]


def seen_workloads(
    info: CheckpointInfo, root: RecordRoot, known: Iterable[TaskKey], progress: Progress
) -> frozenset[str]:
    """Workloads that a given checkpoint was fitted on, on any platform.

    A checkpoint lists them; for an older checkpoint without the list, `known` are the tasks read
    already, and the tasks of other platforms are read. Raises PrunerError where the records of such
    a platform are missing: its workloads could not be left out.
    """
    keys = set(known)
    untold = {
        platform
        for platform, tasks in info.seen_tasks.items()
        if set(tasks) - set(info.seen_workloads.get(platform, ()))
    }
    others = untold - {key.platform for key in keys}
    if missing := sorted(others - set(root.platforms)):
        raise PrunerError(
            f"checkpoint: fitted on records of {', '.join(missing)}, which {root.path} "
            "lacks; without them its workloads cannot be left out of the comparison"
        )
    for platform in sorted(others):
        with Quarantine() as quarantine:
            read = root.read(quarantine, platform)
            files = len(root.task_files(platform))
            keys.update(task.key for task in progress.track(read, f"reading {platform}", files))
    return info.identities | {key.identity for key in keys if info.has_seen(key)}


def source_split(store: ProgramTable, chosen: Chosen, seed: int) -> TaskSplit:
    """The source model's split; the test side holds the unseen workloads."""
    known = [key for key in store.keys if key.identity not in chosen.unseen]
    judges = [key for key in store.keys if key.identity in chosen.unseen]
    valid = known[::_VALIDATED]
    return TaskSplit(
        name="adapt",
        seed=seed,
        train=tuple(key for key in known if key not in valid),
        valid=tuple(valid),
        test=tuple(judges or valid),
    )


def _thinned(store: ProgramTable, chosen: Chosen, each: int) -> ProgramTable | None:
    """At most `each` programs, evenly spaced, of each allowed source task, if any."""
    tasks = [n for n, key in enumerate(store.keys) if key.identity not in chosen.unseen]
    parts = [store.programs_of([task]) for task in tasks]
    places = [torch.linspace(0, len(p) - 1, min(len(p), each)).round().long() for p in parts]
    kept = [part[place] for part, place in zip(parts, places, strict=True)]
    return store.subset(torch.cat(kept)) if kept else None
