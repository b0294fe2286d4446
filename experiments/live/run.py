"""Tune live on this machine's CPU: Pruner as published, ours, and rivals.

Pruner and ours are also run without parts. A cell is one workload, target, contender and seed: one
call of ``tune.py``, 200 trials a task, all measured alike. Parts come in this order, each seed of a
part before the next:

* rounds: the paper's rounds and ours, both without the draft and without PaCM; Ansor's evolution
  with trees in the same spaces, TVM's MetaSchedule, chance
* adaptation: a PaCM of the bundled AVX2 records goes to home= and to SSE4.2 in the paper's rounds
* offline: trained on AVX2, fine-tuned once on the bundled records of AVX-512, frozen; not on a home
  without records
* network: the contenders of rounds on a small network
* ablation: the paper's rounds with a PaCM without its dataflow rows, without its statements
* value: our rounds from a PaCM of the bundled records of all targets, and from scratch
* longer: Ansor with four times the trials, against the paper's rounds, ours and MoA (Table 5)
* systems: our rounds against the ideas of the paper's Table 6 in the same spaces: construction
  (Roller), gradient search (Felix), proposals of a language model (TLM), AdaTune; and the rivals of
  rounds
* systems_network: the same on a small network

Finished cells are skipped and ended cells continue, so the script can be stopped and started at any
time. The machine must have nothing else to do; home= is its description, cpu-avx512, cpu-epyc or
cpu-zen5 (the bundled records were not measured on the latter two):

    python -m experiments.live.run plan=true                  list the work, and its duration
    python -m experiments.live.run hours=4                    four hours of it, then the tables
    python -m experiments.live.run parts=[adaptation] targets=[cpu-sse4]
    python -m experiments.live.run home=cpu-epyc parts=[value]
    python -m experiments.live.run summary=true               the tables from the finished cells

Cells go to out= (outputs/experiments-live), tables to results= (this folder). points.csv has all
the data of the other tables; with keep_rows=true its runs stay in the tables although their folders
are gone, and are not run again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from experiments.common.comparison import Comparison, ComparisonOptions, Step, quoted
from experiments.live.live import (
    LiveRun,
    Place,
    live_curves,
    p_rows,
    point_rows,
    read_live_run,
    read_points,
    result_rows,
    summarise,
    with_kept,
)
from pruner.cli.shared.output import say
from pruner.cli.shared.script import run_script
from pruner.errors import DataError, PrunerError
from pruner.files import METRICS_FILE, load_metrics, write_table
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.study.grid import finished
from pruner.tune.measure.targets import CPU_TARGETS, missing_flags
from pruner.tune.networks.catalog import NETWORKS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# None of them is a workload of the bundled records, which source models learn from.
OPERATORS = {
    "matmul": ["workload=matmul"],
    "conv2d_3x3": ["workload=conv2d"],
    "depthwise_3x3": [
        "workload=depthwise_conv2d", "workload.c=144", "workload.h=28", "workload.w=28",
    ],
    "layer_norm": ["workload=layer_norm"],
}  # fmt: skip
# Only by name. Table 8 of the paper has the linear layer of GPT-2, with its long reduction, on a
# GPU.
LONG = {
    "gpt2_linear": ["workload=matmul", "workload.m=128", "workload.n=768", "workload.k=3072"],
    "long_reduction": ["workload=matmul", "workload.m=64", "workload.n=64", "workload.k=65536"],
}  # fmt: skip
KNOWN = {**OPERATORS, **LONG}
SOURCE = "cpu-avx2"  # pre-training
HOMES = ["cpu-avx512", "cpu-epyc", "cpu-zen5"]  # machines, by what they do best
RECORDED = ["cpu-avx512"]  # homes with bundled records, which `offline` learns from
ANYWHERE = "cpu-sse4"  # a target that all can run
# Equal for all: 3 repeats of 30 ms, nothing ends early; the layout that TVM imports, so that a
# network's tasks are the same for all.
SETTINGS = ["measure.min_repeat_ms=30", "measure.repeats=3", "num_threads=1"]
SETTINGS += ["budget.patience=1000000"]
OF_NETWORK = ["layout=NCHW", "deploy=false", "measure.finalists=0"]
# The paper's draft is for GPUs.
PAPER = ["experiment=paper_tuning", "draft.form=hardware", "budget.batch=10"]
EVERY = "every"  # the model of all bundled records, by the recipe that experiments/model_cpu chose
EVERY_RECIPE = ["data.platform=all", "model=pacm_residual"]
GENTLE_FIT = "pruner.models.adaptation.fitting.gentle_fit"
POINTS = 20  # of a curve
POINTS_FILE = "points.csv"
# Seconds before any of the kind ran: a trial of an operator and, behind "network", of a network;
# the whole of a training, and of a list of tasks.
GUESSED_S = {"live": 0.6, "paper": 0.9, "draft": 0.7, "evolution": 1.0, "rival": 1.1, "chance": 0.5}
GUESSED_S |= {f"network {kind}": seconds for kind, seconds in GUESSED_S.items()}
GUESSED_S |= {"network rival": 2.3, "training": 90.0, "list": 20.0}
NETWORK_TASKS = 5  # of dcgan; of others once they are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to tune: words for ``tune.py``, and words for networks.

    ``model``: a training whose checkpoint it starts from. ``cell``: the contender whose runs it
    shares, by default its own. ``times``: multiple of the common number of trials.
    """

    words: Sequence[str]
    kind: str
    of_network: Sequence[str] | None = None
    model: str = ""
    cell: str = ""
    times: int = 1


def _adapted(name: str, *words: str) -> Contender:
    return Contender(words=[*PAPER, f"adaptation={name}", *words], kind="paper", model="pacm")


def _frozen(model: str, kind: str, *words: str) -> Contender:
    return Contender(words=[*words, "budget.batch=10", "adaptation=none"], kind=kind, model=model)


LIVE, LIVE_NETWORK = ["policy=pruner_live"], ["policy=pruner_network"]
BATCH = ["budget.batch=16"]
# The draft's score is a prior, too, and leads the first batch: without the draft both go.
UNDRAFTED = ["policy.draft=null", "policy.draft_leads=false", "policy.prior=0"]
ROUNDS = {
    "pruner_paper": Contender(words=PAPER, kind="paper"),
    "pruner_live": Contender(
        words=[*LIVE, *BATCH], of_network=[*LIVE_NETWORK, *BATCH], kind="live"
    ),
    # its batches and warm-up as in experiments/tune: the defaults are for thousands of trials
    "metaschedule": Contender(
        words=["policy=metaschedule", "budget.batch=32", "+policy.num_warmup_samples=32"],
        kind="rival",
    ),
    "ansor": Contender(
        words=["policy=ansor", "model=xgboost", "budget.batch=10", "refit=0"], kind="evolution"
    ),
    # as in Ansor: PaCM scores every generation
    "pruner_paper_without_draft": Contender(words=[*PAPER, "policy=ansor"], kind="evolution"),
    "pruner_paper_without_pacm": Contender(words=[*PAPER, "verify=false"], kind="draft"),
    "pruner_live_without_draft": Contender(
        words=[*LIVE, *BATCH, *UNDRAFTED, "policy.random_sample=320"],  # 256 for the drafted
        of_network=[*LIVE_NETWORK, *BATCH, *UNDRAFTED, "policy.random_sample=128"],  # 96
        kind="live",
    ),
    "pruner_live_without_pacm": Contender(
        words=[*LIVE, *BATCH, "verify=false"],
        of_network=[*LIVE_NETWORK, *BATCH, "verify=false"],
        kind="live",
    ),
    "random": Contender(words=["policy=random", *BATCH], kind="chance"),
}
ADAPTATION = {
    "scratch": Contender(words=PAPER, kind="paper", cell="pruner_paper"),
    **{name: _adapted(name) for name in ("moa", "finetune", "distill", "moa_official")},
    # a smaller rate, no decay, at most 40 steps: does the source last longer?
    "moa_gentle": _adapted("moa", f"+adaptation.fit={{_target_:{GENTLE_FIT}}}"),
    "none": Contender(
        words=["policy=pruner_paper", "budget.batch=10", "adaptation=none"],
        kind="paper",
        model="pacm",
        cell="source",
    ),
}
OFFLINE = {
    "tensetmlp": _frozen("tensetmlp-tuned", "evolution", "policy=ansor"),
    "pruner_offline": _frozen("pacm-tuned", "paper", "policy=pruner_paper"),
    "pruner_offline_without_draft": _frozen("pacm-tuned", "evolution", "policy=ansor"),
}
# What a checkpoint is worth: the analyzer is in its model, so it needs no prior.
PRETRAINED = [*LIVE, *BATCH, "policy.prior=0", "policy.draft_leads=false", "adaptation=finetune"]
VALUE = {
    "pretrained": Contender(words=PRETRAINED, kind="live", model=EVERY),
    **{
        name: ROUNDS[name]
        for name in ("pruner_live", "pruner_live_without_pacm", "metaschedule", "random", "ansor")
    },
}
ABLATION = {
    "pruner_paper": ROUNDS["pruner_paper"],
    **{
        f"pruner_paper_without_{part}": Contender(
            words=[*PAPER, f"+model.use_{part}=false"], kind="paper"
        )
        for part in ("dataflow", "statement")
    },
}
LONGER = {
    "ansor_longer": replace(ROUNDS["ansor"], cell="ansor", times=4),
    "pruner_paper": ROUNDS["pruner_paper"],
    "pruner_live": ROUNDS["pruner_live"],
    "moa": ADAPTATION["moa"],
}
SYSTEMS = {
    **{name: ROUNDS[name] for name in ("pruner_live", "pruner_live_without_pacm")},
    "construct": Contender(words=["policy=construct", *BATCH], kind="draft"),
    "gradient": Contender(words=["policy=gradient", *BATCH], kind="draft"),
    "propose_lm": Contender(words=["policy=propose_lm", *BATCH], kind="draft"),
    # its own number of repeats: as many as the spread of a program asks for
    "adatune": Contender(
        words=["policy=adatune", *BATCH, "measure.repeats=6", "measure.cv_limit=0.1"],
        kind="evolution",
    ),
    **{name: ROUNDS[name] for name in ("ansor", "metaschedule", "random")},
}
PARTS = {
    "rounds": ROUNDS,
    "adaptation": ADAPTATION,
    "offline": OFFLINE,
    "network": ROUNDS,
    "ablation": ABLATION,
    "value": VALUE,
    "longer": LONGER,
    "systems": SYSTEMS,
    "systems_network": SYSTEMS,
}
RIVALS = {
    "rounds": ["ansor", "metaschedule", "random", "pruner_paper", "pruner_live"],
    "adaptation": ["scratch", "ansor"],  # the latter where rounds has it
    "offline": ["tensetmlp"],
    "network": ["ansor", "metaschedule", "random", "pruner_paper", "pruner_live"],
    "ablation": ["pruner_paper", "ansor"],
    "value": ["pruner_live", "metaschedule", "ansor"],
    "longer": ["ansor_longer"],
    "systems": list(SYSTEMS),
    "systems_network": list(SYSTEMS),
}
OF_NETWORKS = ["network", "systems_network"]
BESIDE = {"adaptation": ["ansor"], "ablation": ["ansor"]}  # cells of rounds that tables have, too
UNEQUAL = ["longer"]  # contenders have other budgets: areas say nothing
REFUSED = {
    "tlp": "TLP reads primitives of Ansor's records, which live spaces do not have; on recorded "
    "pools it is in experiments/offline"
}


@dataclass(kw_only=True)
class Options(ComparisonOptions):
    """Options of the script, explained above.

    ``contenders``: the contenders of every part; null: the usual ones. `hours`: then it ends.
    `keep_rows`: runs in ``points.csv`` of `results` stay. `home`: the machine, target of the parts
    without adaptation; ``parts``: null, all that it can run; ``targets`` of adaptation: null,
    `home` and SSE4.2.
    """

    home: str = HOMES[0]
    parts: list[str] | None = None
    operators: list[str] = field(default_factory=lambda: list(OPERATORS))
    network: str = "dcgan"
    targets: list[str] | None = None
    contenders: list[str] | None = None
    adaptations: list[str] = field(default_factory=lambda: ["moa", "finetune", "distill"])
    trials: int = 200
    seeds: int = 3
    hours: float | None = None
    more: list[str] = field(default_factory=list)
    out: str = str(ROOT / "outputs" / "experiments-live")
    keep_rows: bool = False
    results: str = str(HERE)

    @property
    def all_parts(self) -> list[str]:
        """The parts to run."""
        possible = [part for part in PARTS if part != "offline" or self.home in RECORDED]
        return possible if self.parts is None else self.parts

    @property
    def all_targets(self) -> list[str]:
        """The targets of adaptation."""
        return [self.home, ANYWHERE] if self.targets is None else self.targets


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCell(Place):
    """A run of a contender."""

    @property
    def contender(self) -> Contender:
        """The contender of the cell; raises DataError for an unknown method."""
        known = PARTS.get(self.part, {})
        if self.method in BESIDE.get(self.part, []):
            known = ROUNDS
        if self.method not in known:
            raise DataError(f"no part {self.part} with {self.method}")
        return known[self.method]

    @property
    def trials(self) -> int:
        """Trials of a task for this contender."""
        return self.budget_trials * self.contender.times

    @property
    def name(self) -> str:
        """Name of its run, which cells of several parts may share."""
        who = self.contender.cell or self.method
        return f"{self.target}-{self.workload}-{who}-{self.trials}-{self.seed}"


def _place(run: LiveRun) -> tuple[int, str, str, int, int]:
    methods = [*PARTS[run.part], *BESIDE.get(run.part, [])]
    place = methods.index(run.method)
    return list(PARTS).index(run.part), run.target, run.workload, place, run.seed


class LiveComparison(Comparison):
    """All cells of the requested parts, as steps."""

    def __init__(self, options: Options) -> None:
        _check(options)
        self.options = options
        seconds = float("inf") if options.hours is None else 3600 * options.hours
        self.kept = read_points(options.folder / POINTS_FILE) if options.keep_rows else []
        try:
            self._kept = {LiveCell(**run.key).name: run for run in self.kept}
        except DataError as error:
            raise DataError(f"{POINTS_FILE}: {error}; keep_rows=false") from error
        super().__init__(options.runs, ROOT, GUESSED_S, seconds=seconds)

    def cells(self, part: str, beside: Sequence[str] = ()) -> Iterator[LiveCell]:
        """Cells of a part, seed by seed; with `beside` also these contenders' at home."""
        options = self.options
        adapts = part == "adaptation" and not beside
        targets = options.all_targets if adapts else [options.home]
        workloads = [options.network] if part in OF_NETWORKS else options.operators
        for seed, target, workload in product(range(options.seeds), targets, workloads):
            for method in beside or self._methods(part):
                yield LiveCell(
                    part=part,
                    target=target,
                    workload=workload,
                    method=method,
                    seed=seed,
                    budget_trials=options.trials,
                )

    def check(self) -> None:
        """Raises PrunerError where no contender is of any part."""
        options = self.options
        if not any(self._methods(part) for part in options.all_parts):
            raise PrunerError(
                f"contenders={options.contenders}: none of them is of parts={options.all_parts}"
            )

    def check_loss(self, runs: Sequence[LiveRun]) -> None:
        """Raise PrunerError where tables of these runs would lack earlier runs."""
        if self.options.keep_rows:
            return
        path = self.options.folder / POINTS_FILE
        lost = len(with_kept(runs, read_points(path))) - len(runs)
        if lost:
            raise PrunerError(
                f"{path} has {lost} runs that are not in out=: keep_rows=true keeps them, "
                "results=FOLDER leaves it as it is; or delete it"
            )

    def _methods(self, part: str) -> list[str]:
        known, chosen = list(PARTS[part]), self.options.contenders
        if part == "adaptation":
            known = ["scratch", *self.options.adaptations]
        return known if chosen is None else [name for name in known if name in chosen]

    def folder(self, cell: LiveCell) -> Path:
        """The run folder of a cell."""
        return self.runs / "tune" / cell.name

    def steps(self) -> Iterator[Step]:
        """The needs of each cell, then the cell."""
        for part in self.options.all_parts:
            for cell in self.cells(part):
                if cell.name in self._kept:
                    continue
                needs = []
                if cell.part in OF_NETWORKS:
                    needs.append(self._listing())
                if cell.contender.model:
                    needs += self.trainings(cell.contender.model, cell.seed)
                yield from needs
                yield self.tuned_cell(cell, needs)

    def tuned_cell(self, cell: LiveCell, needs: Sequence[Step]) -> Step:
        """The call of ``tune.py``; a network gets as many trials a task."""
        who, words = cell.contender, [f"platform={cell.target}"]
        kind, trials = who.kind, cell.trials
        if cell.part in OF_NETWORKS:
            listed = load_metrics(self._listing().leaves.parent) or {}
            tasks = int(listed.get("num_tuned", NETWORK_TASKS))
            kind, trials = f"network {kind}", trials * tasks
            given = who.words if who.of_network is None else who.of_network
            words += [f"network={cell.workload}", *given, *OF_NETWORK]
        else:
            words += [*KNOWN[cell.workload], *who.words]
        if who.model:
            trained = needs[-1].leaves.parent
            words.append(f"checkpoint={quoted(trained)}")
        own = {word.partition("=")[0] for word in words}
        words += [f"budget.trials={trials}", f"seed={cell.seed}", *self.options.more]
        words += [word for word in SETTINGS if word.partition("=")[0] not in own]
        return self.tuned(cell.name, words, kind=kind, size=trials, needs=needs)

    def trainings(self, model: str, seed: int) -> list[Step]:
        """The steps that train the source's model, or for `EVERY` that of all targets.

        For ``MODEL-tuned`` also its fine-tuning on the target.
        """
        if model == EVERY:
            return [self._training(f"{EVERY}-{seed}", seed, EVERY_RECIPE)]
        network, _, tuned = model.partition("-")
        first = self._training(f"{SOURCE}-{network}-{seed}", seed, [
            "experiment=paper_training", f"model={network}", f"platform={SOURCE}",
        ])  # fmt: skip
        if not tuned:
            return [first]
        source = first.leaves.parent
        home = self.options.home
        words = ["experiment=paper_finetuning", f"platform={home}", f"checkpoint={quoted(source)}"]
        name = f"{SOURCE}-{home}-{network}-{seed}"
        return [first, self._training(name, seed, words, needs=[first])]

    def _training(self, name: str, seed: int, words: list[str], needs: Sequence[Step] = ()) -> Step:
        words = [*words, "split=bundled", f"seed={seed}", "num_threads=1"]
        return self.tuned(name, words, kind="training", needs=needs, command="train", resumes=False)

    def _listing(self) -> Step:
        words = [f"network={self.options.network}", f"platform={self.options.home}"]
        words += ["list=true", "layout=NCHW"]
        return self.tuned(f"{self.options.network}-tasks", words, kind="list", resumes=False)

    def finished(self) -> list[LiveRun]:
        """All finished cells; a cell in which nothing ran is reported and left out."""
        found = []
        for part in self.options.all_parts:
            beside = self.cells(part, BESIDE[part]) if part in BESIDE else ()
            for cell in (*self.cells(part), *beside):
                found += self._read(cell)
        return found

    def _read(self, cell: LiveCell) -> list[LiveRun]:
        folder = self.folder(cell)
        if not finished(folder / METRICS_FILE):
            kept = self._kept.get(cell.name)
            return [] if kept is None else [replace(kept, **cell.key)]
        try:
            return [read_live_run(folder, cell)]
        except DataError as error:
            say(f"left out: {error}")
            return []


def _check(options: Options) -> None:
    for what, number in (("trials", options.trials), ("seeds", options.seeds)):
        if number < 1:
            raise PrunerError(f"{what}={number}: at least 1")
    if options.hours is not None and options.hours <= 0:
        raise PrunerError(f"hours={options.hours:g}: more than 0, or null")
    usual = sorted({name for part in PARTS.values() for name in part})
    for what, given, known in (
        ("home", [options.home], HOMES),
        ("parts", options.all_parts, list(PARTS)),
        ("operators", options.operators, list(KNOWN)),
        ("targets", options.all_targets, [options.home, ANYWHERE]),
        ("adaptations", options.adaptations, [name for name in ADAPTATION if name != "scratch"]),
        ("contenders", usual if options.contenders is None else options.contenders, usual),
        ("network", [options.network], sorted(NETWORKS)),
    ):
        if not given and what != "adaptations":
            raise PrunerError(f"{what}=[]: name one or more of {', '.join(known)}")
        if len(set(given)) < len(given):
            raise PrunerError(f"{what}=[{','.join(given)}]: a name stands twice")
        for name in given:
            if name not in known:
                reason = REFUSED.get(name, f"unknown; known: {', '.join(known)}")
                raise PrunerError(f"{what}={name}: {reason}")
    if "offline" in options.all_parts and options.home not in RECORDED:
        raise PrunerError(
            f"parts=[offline]: no bundled records of home={options.home} to learn from; it can on "
            f"{', '.join(RECORDED)}"
        )


def run(options: Options) -> dict[str, Any]:
    """Run the missing cells, then write the tables."""
    comparison = LiveComparison(options)
    comparison.check()
    if options.plan:
        return comparison.show_plan()
    found = comparison.finished()
    comparison.check_loss(found)
    if not options.summary:
        device = load_device(conf_folder() / "platform" / f"{options.home}.yaml")
        for target in CPU_TARGETS:  # can this CPU run the programs of the home?
            lacking = missing_flags(target)
            if target.vector_bytes == device.vector_bytes and lacking:
                others = ", ".join(other for other in HOMES if other != options.home)
                lacks = f"this CPU lacks {', '.join(lacking)}"
                raise PrunerError(f"home={options.home}: {lacks}; known: {others}")
        comparison.run_all()
        found = comparison.finished()
    runs = sorted(with_kept(found, comparison.kept), key=_place)
    if not runs:
        hint = "; run without summary=true" if options.summary else ""
        raise DataError(f"{options.runs}: no finished cell{hint}")
    rows, points, curves = [], [], []
    for budget in sorted({run.budget_trials for run in runs}):
        alike, every = [run for run in runs if run.budget_trials == budget], budget // POINTS or 1
        points += point_rows(alike, every)
        curves += live_curves(alike, every)
    for part in PARTS:
        rows += result_rows([run for run in runs if run.part == part], RIVALS[part])
    equal = [run for run in runs if run.part not in UNEQUAL]
    write_table(options.folder / POINTS_FILE, points, floats=".9g")
    tables = {"results": rows, "tests": p_rows(equal), "curves": curves}
    if rows:  # without a rival's cell there is nothing to summarise
        tables["summary"] = summarise(rows).to_dict("records")
    for name, content in tables.items():
        write_table(options.folder / f"{name}.csv", content, floats=".6g")
    return {"cells": len(runs), "summary": str(options.folder / "summary.csv")}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
