"""Offline mode on recorded pools: pre-train, fine-tune once, freeze, search.

    python -m experiments.offline.run data.root=DIR [target=v100] [method=[tlp,pruner_offline]]

Every model is trained on the source's records without the tuned workloads and the workloads of the
evaluation. It is fine-tuned once on the programs of twelve other tasks of the target (about
10,000), and then frozen. Then it tunes five tasks of the target with 200 trials. Each seed has its
own model. The rivals use Ansor's search, without a draft. recipe=paper trains as
experiment=paper_training does (50 epochs, hours). Finished models and cells (under runs=) are not
made again. Output: results.csv, models.csv and curves.csv here, or in out=DIR.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from experiments.common.contest import (
    CACHE,
    Contestant,
    Ground,
    budget_of,
    contest_rows,
    curve_rows,
    policy,
    run_contest,
)
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.script import Data, keep_tables, run_script
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey
from pruner.errors import check_chosen
from pruner.files import load_metrics, merged_table, save_metrics, write_table
from pruner.models.adaptation.base import Adaptation, Setting
from pruner.models.adaptation.fitting import adam, gentle_fit, released_fine_tuning
from pruner.models.adaptation.warm import FineTune, Unchanged
from pruner.models.analyzer.analyzer import AnyFormula
from pruner.models.judging.judge import random_report
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.tlp import TLP
from pruner.models.programs.dataset import RecordReader
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.ranker import NeuralRanker, RandomRanker
from pruner.models.training.fit import start_of
from pruner.models.training.losses import LambdaRank
from pruner.models.training.recipe import Recipe
from pruner.models.training.sampler import MixedBatches, TaskBatches
from pruner.search.offline.adaptation_run import Quality
from pruner.search.policy import RoundSettings
from pruner.study.adaptation.context import read_programs, source_split
from pruner.study.training_run import Fold, run_fold

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASELINE = "tensetmlp"
RIVALS = (BASELINE, "tlp")  # whose final latency is to be reached
RANDOM = "random"
EVERY = 20  # trials between two points of a curve
EIGHTH, BESIDE = 100, 25  # drafted and random of some 800 programs, as in experiments/rounds
FINE_TUNE_EPOCHS = 5
PRIOR = 20.0  # as in experiments/replay
# On two cores TLP gets a quarter of the programs an epoch and eight epochs, as in table_topk.
SLOW = {
    "batches": TaskBatches(tasks=4, per_task=64),
    "epochs": 8,
    "trainer": {"precision": "bf16-mixed"},
}
PUBLISHED: dict[str, Any] = {  # conf/experiment/paper_training.yaml; a test compares them
    "loss": LambdaRank(lists="batch"),
    "optimizer": adam(),
    "schedule": None,
    "batches": MixedBatches(programs=512),
    "relative": False,
    "scale": "max",
    "keep": "last",
    "patience": 16,
    "epochs": 50,
    "trainer": {"gradient_clip_val": 0.5},
}


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    source: str = "k80"
    target: str = "v100"
    method: list[str] | None = None
    recipe: str = "ours"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    budget: str = "default"
    runs: str = str(ROOT / "outputs" / "offline")
    out: str = str(HERE)

    @property
    def folder(self) -> Path:
        """Folder of models and cells."""
        return Path(self.runs) / f"{self.source}-{self.target}-{self.budget}-{self.recipe}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A trained model and its rounds; ``shares``: whose trained model it takes."""

    recipe: Recipe
    settings: RoundSettings
    form: AnyFormula = "hardware"
    shares: str | None = None


def ways(recipe: str) -> Mapping[str, Way]:
    """Everything that is compared; raises PrunerError for an unknown recipe."""
    check_chosen("recipe", [recipe], ("ours", "paper"))
    base = Recipe() if recipe == "ours" else Recipe(**PUBLISHED)
    tlp = replace(base, model=TLP, **SLOW) if recipe == "ours" else replace(base, model=TLP)
    attention = replace(base, model=HardwareAttention)
    pruned = replace(attention, train_share=0.55, train_pick="spread")
    ansor, paper, pacm = policy("ansor"), policy("pruner_paper"), "pruner_offline"
    assert paper.draft is not None
    eighth = replace(paper, draft=replace(paper.draft, keep=EIGHTH), random_sample=BESIDE)
    return {
        BASELINE: Way(recipe=replace(base, model=TenSetMLP), settings=ansor),
        "tlp": Way(recipe=tlp, settings=ansor),
        pacm: Way(recipe=base, settings=paper, form="paper"),
        "pruner_offline_eighth": Way(recipe=base, settings=eighth, form="paper", shares=pacm),
        "pacm_without_draft": Way(recipe=base, settings=ansor, shares=pacm),
        "ours_offline": Way(
            recipe=base, settings=replace(policy("pool"), prior=PRIOR), shares=pacm
        ),
        "attention": Way(recipe=attention, settings=ansor),
        "attention_pruned": Way(recipe=pruned, settings=ansor),
    }


@dataclass(frozen=True, kw_only=True)
class Models:
    """The frozen models of all ways; trained and fine-tuned on first use."""

    ground: Ground
    options: Options
    _made: dict[tuple[str, int], NeuralRanker] = field(default_factory=dict)

    def ranker(self, name: str, way: Way, seed: int) -> NeuralRanker:
        """Trained on the source, fine-tuned on the target."""
        name = way.shares or name
        if (name, seed) not in self._made:
            self._made[name, seed] = self._make(name, way.recipe, seed)
        return self._made[name, seed]

    def adaptation(self, name: str, way: Way, seed: int) -> Adaptation:
        """The model as it searches: it never learns again."""
        ranker = self.ranker(name, way, seed)
        return Unchanged(Setting(make_network=lambda: ranker.network, source=ranker, seed=seed))

    def rows(self) -> list[dict[str, Any]]:
        """A row a model: training, and Top-k on judging and tuned tasks."""
        chance = {}
        for ending, store in (("", self._held_out), ("_tuned", self._tuned)):
            every = torch.arange(store.num_programs)
            report = random_report(RandomRanker().score_tasks(store, every))
            chance |= {f"{name}{ending}": report[name] for name in ("top1", "top5")}
        return [
            {"model": name, "seed": seed, **known}
            for name in ways(self.options.recipe)
            for seed in self.options.seeds
            if (known := load_metrics(self._folder(name, seed) / "tuned")) is not None
        ] + [{"model": RANDOM, "seed": seed, **chance} for seed in self.options.seeds]

    def _folder(self, name: str, seed: int) -> Path:
        return self.options.folder / "models" / name / f"seed-{seed}"

    def _make(self, name: str, recipe: Recipe, seed: int) -> NeuralRanker:
        folder = self._folder(name, seed)
        split = source_split(self._source, self.ground.chosen, seed)
        part = Fold(name="source", folder=folder, split=split, seed=seed)
        trained = run_fold(recipe, self._source, part) or {}
        start = start_of(part.checkpoint)
        make = partial(type(start.ranker.network), **start.info.model.arguments)
        setting = Setting(make_network=make, source=start.ranker, seed=seed)
        published = self.options.recipe == "paper"
        gentle = gentle_fit(epochs=FINE_TUNE_EPOCHS, max_steps=None)
        fine_tuned = FineTune(setting, fit=released_fine_tuning() if published else gentle)
        before = Quality.of(start.ranker, self._held_out)
        began = time.process_time()
        fine_tuned.update(self.ground.labelled("paper"))
        seconds = time.process_time() - began
        after = Quality.of(fine_tuned.ranker, self._held_out)
        tuned = Quality.of(fine_tuned.ranker, self._tuned)
        (folder / "tuned").mkdir(exist_ok=True)
        save_metrics(folder / "tuned", {
            "train_programs": trained.get("num_train_programs"),
            "fit_seconds": trained.get("fit_seconds"),
            "fine_tune_seconds": seconds,
            "top1_before": before.top1, "top5_before": before.top5,
            "top1": after.top1, "top5": after.top5,
            "top1_tuned": tuned.top1, "top5_tuned": tuned.top5,
        })  # fmt: skip
        return fine_tuned.ranker

    def _programs_of(self, keys: Sequence[TaskKey]) -> ProgramTable:
        programs = self.ground.programs("paper")
        return ProgramTable.build(programs[key] for key in keys)

    @cached_property
    def _held_out(self) -> ProgramTable:
        return self._programs_of(self.ground.chosen.held_out)

    @cached_property
    def _tuned(self) -> ProgramTable:
        """The complete searched pools; nothing is chosen by them."""
        return self._programs_of(self.ground.chosen.tuned)

    @cached_property
    def _source(self) -> ProgramTable:
        reader = RecordReader(self.ground.root, ReadSpec(cache=CACHE))
        found = read_programs(reader, self.options.source, ON_STDERR)
        return ProgramTable.build(found.values())


def run(options: Options) -> dict:
    """Train, tune the missing cells, then write the tables."""
    keep_tables(options, HERE, "budget")
    torch.set_num_threads(1)
    known = ways(options.recipe)
    names = list(dict.fromkeys([BASELINE, *(options.method or known)]))
    names = [name for name in names if name != RANDOM]  # chance is always there
    check_chosen("method", names, known)
    root, budget = RecordRoot(options.data.root), budget_of(options.budget)
    ground = Ground(root=root, platform=options.target, budget=budget)
    models = Models(ground=ground, options=options)
    contestants = {
        name: Contestant(
            settings=known[name].settings,
            form=known[name].form,
            model=partial(models.adaptation, name, known[name]),
        )
        for name in names
    }
    contestants[RANDOM] = Contestant()
    cells = run_contest(contestants, ground, options.folder, seeds=options.seeds)
    about = {"source": options.source, "target": options.target, "recipe": options.recipe}
    out, key = Path(options.out), (*about, "method", "seed")
    rows = [
        row
        for rival in RIVALS
        if rival in names
        for row in contest_rows(cells, rival, **about, against=rival)
    ]
    for name, table, columns in (
        ("results.csv", rows, (*key, "against")),
        ("curves.csv", curve_rows(cells, EVERY, **about), key),
        ("models.csv", [{**about, **row} for row in models.rows()], (*about, "model", "seed")),
    ):
        write_table(out / name, merged_table(out / name, table, columns), floats=".6g")
    return {"cells": len(cells), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
