"""What ``adapt.py`` runs on: tasks to tune, tasks to judge by, labels, and the source model."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig

from pruner.cli.dataset import record_root
from pruner.cli.options import plain
from pruner.cli.output import say
from pruner.cli.progress import track
from pruner.cli.recipe import recipe_of, watching
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import Split
from pruner.data.tasks import TaskKey, TaskRecords
from pruner.errors import DataError, PrunerError
from pruner.files import save_metrics
from pruner.models.adaptation.base import Setting
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.model import Network
from pruner.models.programs.reading import Dataflow, Tally, featurize_task
from pruner.models.programs.store import ProgramStore
from pruner.models.programs.subset import subset
from pruner.models.ranker import NeuralRanker
from pruner.models.training.fit import check_recipe, ranker_of
from pruner.places import conf_folder
from pruner.program.dag.task_index import TaskIndex, task_index_of
from pruner.search.offline.recorded import RecordedPool, recorded_pool
from pruner.search.offline.tuning import Quality
from pruner.study.training import Part, run_part

_VALIDATED = 10  # one source task in so many chooses the source model's epoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bench:
    """Everything the cells of one source and target share.

    ``held_out`` and ``labelled``: tasks of the target that are not tuned; ``source_held_out``: the
    tuned and held-out workloads on the source platform, None where it has none of them.
    """

    pools: Sequence[RecordedPool]
    held_out: ProgramStore
    labelled: ProgramStore
    source: NeuralRanker
    source_store: ProgramStore | None
    source_held_out: ProgramStore | None
    make_network: Callable[[], Network]

    def setting(self, seed: int) -> Setting:
        """What a method starts from."""
        return Setting(
            make_network=self.make_network,
            source=self.source,
            source_store=self.source_store,
            seed=seed,
        )


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


def choose_tasks(spreads: Mapping[TaskKey, float], budget: DictConfig) -> Chosen:
    """Divide tasks, one of a workload, in the order of a hash of the workload.

    `spreads`: median latency / best of every usable task. Tasks below ``budget.spread``, whose
    programs are all about equally fast, are tuned only where others are lacking: nothing can be
    won on them. Of few tasks about two of three are tuned. Raises DataError below three workloads.
    """
    unique = {key.identity: key for key in sorted(spreads, reverse=True)}
    order = sorted(unique.values(), key=lambda key: sha256(key.identity.encode()).hexdigest())
    if len(order) < 3:
        raise DataError(
            f"{len(order)} usable tasks of the target; tuning, judging and labels need one each"
        )
    order.sort(key=lambda key: spreads[key] < budget.spread)  # stable: the hash order stays
    num_tuned = min(budget.tasks, max(1, 2 * len(order) // 3 - 1))
    tuned, rest = order[:num_tuned], order[num_tuned:]
    rest.sort(key=lambda key: sha256(key.identity.encode()).hexdigest())
    judging = min(budget.held_out, max(1, len(rest) // 2))
    return Chosen(
        tuned=tuple(tuned),
        held_out=tuple(rest[:judging]),
        labelled=tuple(rest[judging:][: budget.label_tasks]),
    )


def prepare(config: DictConfig, folder: Path) -> Bench:
    """Read the records, choose tasks, load or train the source model."""
    root = record_root(config.data)
    index = task_index_of(root.path)
    source, target = _read(root, config.source), _read(root, config.target)
    loaded = _given_source(config)
    seen = _seen_workloads(loaded[1], root, {**source, **target}) if loaded else frozenset()
    usable = {
        key: float(np.median(records.latency_s[records.valid]) / records.best_s)
        for key, records in target.items()
        if records.valid.sum() >= config.budget.least and key.identity not in seen
    }
    chosen = choose_tasks(usable, config.budget)
    dataflow: Dataflow = loaded[1].dataflow if loaded else config.features.dataflow  # type: ignore[assignment]
    source_programs = _featurised(list(source.values()), dataflow, index)
    ranker, info = loaded or _train_source(config, folder, source_programs, chosen)
    analyzer = load_analyzer(conf_folder(), config.target)
    pools = [
        recorded_pool(target[key], analyzer=analyzer, dataflow=dataflow, tasks=index)
        for key in chosen.tuned
    ]
    source_held_out = _of_workloads(source_programs, chosen.unseen)
    if loaded and source_held_out is not None:  # a model trained here is judged as it is trained
        judged = Quality.of(ranker, source_held_out)
        (folder / "source").mkdir(exist_ok=True)
        save_metrics(folder / "source", {"top1": judged.top1, "top5": judged.top5})
    say(_summary(config, chosen, info))
    return Bench(
        pools=[pool for pool in pools if pool is not None],
        held_out=_featurised([target[key] for key in chosen.held_out], dataflow, index),
        labelled=_featurised([target[key] for key in chosen.labelled], dataflow, index),
        source=ranker,
        source_store=_thinned(source_programs, chosen, config.budget.source_programs),
        source_held_out=source_held_out,
        make_network=lambda: _network(info),
    )


def _read(root: RecordRoot, platform: str) -> dict[TaskKey, TaskRecords]:
    with Quarantine() as quarantine:
        files = len(root.task_files(platform))
        tasks = track(root.read(quarantine, platform), f"reading {platform}", files)
        return {records.key: records for records in tasks}


def _featurised(
    tasks: Sequence[TaskRecords], dataflow: Dataflow, index: TaskIndex | None
) -> ProgramStore:
    tally = Tally()
    parts = (
        featurize_task(records, dataflow, tally, index)
        for records in track(tasks, "features", len(tasks))
    )
    return ProgramStore.build(part for part in parts if part is not None)


def _given_source(config: DictConfig) -> tuple[NeuralRanker, CheckpointInfo] | None:
    if config.checkpoint is None:
        return None
    ranker, info = ranker_of(Path(config.checkpoint))
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError(f"checkpoint={config.checkpoint}: adaptation needs a neural model")
    return ranker, info


def _seen_workloads(
    info: CheckpointInfo, root: RecordRoot, known: Iterable[TaskKey]
) -> frozenset[str]:
    """Workloads that a given checkpoint was fitted on, whatever the platform.

    `known` are the tasks read already. Raises PrunerError where it was fitted on records of a
    platform that are not here: what it has seen of them cannot be told apart.
    """
    keys = set(known)
    others = set(info.seen_tasks) - {key.platform for key in keys}
    if missing := sorted(others - set(root.platforms)):
        raise PrunerError(
            f"checkpoint: fitted on records of {', '.join(missing)}, which {root.path} lacks; "
            "without them its workloads cannot be left out of the comparison"
        )
    keys.update(key for platform in sorted(others) for key in _read(root, platform))
    return frozenset(key.identity for key in keys if info.has_seen(key))


def _train_source(
    config: DictConfig, folder: Path, store: ProgramStore, chosen: Chosen
) -> tuple[NeuralRanker, CheckpointInfo]:
    known = [key for key in store.keys if key.identity not in chosen.unseen]
    judges = [key for key in store.keys if key.identity in chosen.unseen]
    valid = known[::_VALIDATED]
    split = Split(
        name="adapt",
        seed=config.seed,
        train=tuple(key for key in known if key not in valid),
        valid=tuple(valid),
        test=tuple(judges or valid),
    )
    config.platform.name = config.source
    part = Part(name="source", folder=folder / "source", split=split, seed=config.seed)
    recipe = recipe_of(config)
    check_recipe(recipe)
    run_part(recipe, store, part, config=plain(config), watching=watching(config))
    ranker, info = ranker_of(part.checkpoint)
    if not isinstance(ranker, NeuralRanker):
        raise PrunerError("model: adaptation needs a neural model, such as model=pacm_narrow")
    return ranker, info


def _network(info: CheckpointInfo) -> Network:
    network = info.model.build()
    assert isinstance(network, Network), type(network)
    return network


def _of_workloads(store: ProgramStore, identities: frozenset[str]) -> ProgramStore | None:
    tasks = [n for n, key in enumerate(store.keys) if key.identity in identities]
    return subset(store, store.programs_of(tasks)) if tasks else None


def _thinned(store: ProgramStore, chosen: Chosen, each: int) -> ProgramStore:
    """At most `each` programs, evenly spaced, of every task that the source model may see."""
    tasks = [n for n, key in enumerate(store.keys) if key.identity not in chosen.unseen]
    parts = [store.programs_of([task]) for task in tasks]
    return subset(store, torch.cat([p[:: max(1, len(p) // each)][:each] for p in parts]))


def _summary(config: DictConfig, chosen: Chosen, info: CheckpointInfo) -> str:
    known = "has seen none of the first two" if info.seen_tasks else "does not say what it has seen"
    return (
        f"{config.target}: {len(chosen.tuned)} tasks tuned, {len(chosen.held_out)} judge, labels "
        f"from {len(chosen.labelled)}; the source model {known}"
    )
