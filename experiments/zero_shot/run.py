"""Zero shot: every source platform against every target.

    python -m experiments.zero_shot.run data.root=DIR [targets=[v100]] [seeds=[0,1,2]]

Some models read the device, some do not. A model learns from one platform, or from all platforms
but the target. It ranks workloads of the target that are in no training task of any platform (the
lists of split=by_task). It sees no record of the target, unless source and target are the same.
A100 is no target, because these lists hold out only one or two of its seven tasks. Rows in out=
with as many epochs are not made again; fits are stored under runs=.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.cli.shared.script import Data, keep_tables, run_script
from pruner.data.root import RecordRoot
from pruner.data.splits import TaskSplit, make_split
from pruner.errors import check_chosen
from pruner.files import merged_table, read_table, write_table
from pruner.models.judging.judge import judge
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.ranker import RandomRanker, Ranker
from pruner.models.registry import ModelFactory
from pruner.models.training.fit import ranker_of
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import TaskBatches
from pruner.study.training_run import Fold, run_fold

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS: dict[str, ModelFactory] = {"pacm": PaCM, "attention": HardwareAttention}
RANDOM, OTHERS = "random", "all others"
# Programs of a task an epoch: about as many from one platform as from many.
EACH, EACH_OF_MANY = 128, 48
KEY = ("model", "source", "target", "seed")


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    sources: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50"])
    targets: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50"])
    models: list[str] = field(default_factory=lambda: list(MODELS))
    seeds: list[int] = field(default_factory=lambda: [0])
    epochs: int = 12
    runs: str = str(ROOT / "outputs" / "zero_shot")
    out: str = str(HERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A model, the platforms to learn from, and the platforms to judge."""

    model: str
    source: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    epochs: int
    seed: int

    @property
    def folder(self) -> str:
        """Folder of the fit."""
        return f"{self.model}/{'+'.join(self.sources)}/{self.epochs}-epochs/seed-{self.seed}"

    @property
    def rows(self) -> set[tuple[str, ...]]:
        """Its rows of the table, by key and epochs."""
        ends = (str(self.seed), str(self.epochs))
        return {(self.model, self.source, target, *ends) for target in self.targets}


def fits(options: Options) -> Iterator[Fit]:
    """Yield every fit: of a source for all targets, of all others for one."""
    platforms = tuple(dict.fromkeys([*options.sources, *options.targets]))
    for seed in options.seeds:
        for model in options.models:
            make = partial(Fit, model=model, epochs=options.epochs, seed=seed)
            for source in options.sources:
                yield make(source=source, sources=(source,), targets=tuple(options.targets))
            for target in options.targets:
                others = tuple(name for name in platforms if name != target)
                yield make(source=OTHERS, sources=others, targets=(target,))


def recipe_of(fit: Fit) -> Recipe:
    """Our recipe, with equal programs an epoch for any number of platforms."""
    each = EACH if len(fit.sources) == 1 else EACH_OF_MANY
    return Recipe(
        model=MODELS[fit.model],
        batches=TaskBatches(per_task=each),
        epochs=fit.epochs,
        seed=fit.seed,
    )


def only(split: TaskSplit, *, learn: Sequence[str], judged: Sequence[str]) -> TaskSplit:
    """The split restricted to platforms for learning, and others for judging."""
    return replace(
        split,
        train=tuple(key for key in split.train if key.platform in learn),
        valid=tuple(key for key in split.valid if key.platform in learn),
        test=tuple(key for key in split.test if key.platform in judged),
    )


def rows_of(fit: Fit, store: ProgramTable, options: Options) -> list[dict]:
    """Fit, and judge on every target."""
    split = make_split("by_task", store.keys, fit.seed)
    whole = only(split, learn=fit.sources, judged=fit.targets)
    part = Fold(name=fit.folder, folder=Path(options.runs) / fit.folder, split=whole, seed=fit.seed)
    run_fold(recipe_of(fit), store, part)
    ranker, _ = ranker_of(part.checkpoint)
    rows = []
    for target in fit.targets:
        own = only(split, learn=fit.sources, judged=[target])
        known = {"model": fit.model, "source": fit.source, "target": target, "seed": fit.seed}
        known |= {"epochs": fit.epochs, "seen": int(target in fit.sources)}
        rows.append(known | numbers(ranker, store, own))
    return rows


def numbers(ranker: Ranker, store: ProgramTable, split: TaskSplit) -> dict:
    """The columns of a row, computed from a ranking."""
    metrics = judge(ranker, store, split).metrics
    names = ("top1", "top5", "pairwise_accuracy", "top1_task_mean", "num_tasks", "num_programs")
    return {name: metrics[name] for name in names}


def chance(store: ProgramTable, options: Options) -> Iterator[dict]:
    """The rows of a random ranking."""
    for seed in options.seeds:
        split = make_split("by_task", store.keys, seed)
        for target in options.targets:
            metrics = judge(RandomRanker(), store, only(split, learn=(), judged=[target])).metrics
            names = ("top1", "top5", "pairwise_accuracy", "top1_task_mean")
            yield {
                "model": RANDOM, "source": RANDOM, "target": target, "seed": seed, "epochs": 0,
                "seen": 0, **{name: metrics["random"][name] for name in names},
                "num_tasks": metrics["num_tasks"], "num_programs": metrics["num_programs"],
            }  # fmt: skip


def run(options: Options) -> dict:
    """Make the rows that the table lacks."""
    keep_tables(options, HERE, "epochs")
    check_chosen("models", options.models, MODELS)
    torch.set_num_threads(1)
    table = Path(options.out) / "results.csv"
    there = {tuple(row[name] for name in (*KEY, "epochs")) for row in read_table(table)}
    wanted = [fit for fit in fits(options) if not fit.rows <= there]
    platforms = list(dict.fromkeys([*options.sources, *options.targets]))
    store = load_programs(
        RecordRoot(options.data.root), platforms, ReadSpec(cache=ROOT / "outputs" / "cache")
    ).store
    write_table(table, merged_table(table, list(chance(store, options)), KEY), ".6f")
    for fit in track(wanted, "zero shot", len(wanted)):
        rows = rows_of(fit, store, options)
        write_table(table, merged_table(table, rows, KEY), ".6f")
        say(f"{fit.model} from {fit.source}: " + ", ".join(
            f"{row['target']} {row['top1']:.3f}" for row in rows))  # fmt: skip
    return {"fits": len(wanted), "out": str(options.out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
