"""Tune whole networks on this machine's CPU: ours, MetaSchedule, and baselines.

A cell is a network, policy and seed: one call of ``tune.py`` and one of ``pruner deploy``. The
policies are ours, MetaSchedule's search, and random search in our spaces. They get the same number
of trials (20 per task of ours) in batches of 16, from the same measurer. The script also builds
networks from the records of the first seconds of our run and of MetaSchedule's run, and times them
with MetaSchedule's final network. It times the final networks with torch, onnxruntime and TVM
without tuning. At the end it drafts all built-in networks without measurements, builds them and
compares their results with torch. The most informative steps come first. Finished steps are
skipped and interrupted runs continue, so you can stop and start the script at any time:

    python -m experiments.networks.run plan=true              list the work, and its duration
    python -m experiments.networks.run                        all of it, then the tables
    python -m experiments.networks.run summary=true           the tables from the finished cells
    python -m experiments.networks.run networks=[dcgan] many_seeds=[] long=[] drafts=[] results=DIR

Cells go to out= (outputs/experiments-networks), tables and the picture to results= (this folder).
MetaSchedule tunes our layout (NHWC). With rival_layout=NCHW it tunes the layout in which TVM
imports a network; then the tasks differ, and only built networks can be compared.
"""

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.common.comparison import Comparison, ComparisonOptions, Step
from experiments.networks.cells import (
    CHANCE,
    RIVAL,
    Cell,
    drafts_first,
    prefix_rows,
    prefixes_of,
    result_rows,
    summarise,
)
from experiments.networks.prefixes import PREFIXES_FILE
from pruner.cli.shared.script import run_script
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics, merged_table, read_table, write_table
from pruner.study.book.items import Plot
from pruner.study.book.key_numbers import plot_series
from pruner.study.book.plots import svg
from pruner.study.markdown import markdown_table
from pruner.study.network.run import baseline_rows, read_network_run
from pruner.tune.compare.baselines import OURS
from pruner.tune.compare.benchmark import SideBySide
from pruner.tune.deploy.built_files import COMPARISON_FILE, DEPLOY_FILE
from pruner.tune.networks.catalog import NETWORKS as CATALOG

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PICTURE = ROOT / "docs" / "images" / "networks.svg"
UNSCHEDULED = "TVM untuned"
NETWORKS = ["resnet18", "mobilenet_v2", "bert_tiny", "squeezenet1_1", "dcgan"]
LAYERS = {"opt": 2, "mistral": 2}  # whose weights need tens of gigabytes
POLICIES = {
    OURS: [],  # what tune.py does with network=, but for SETTINGS
    # its model counts from 32 programs on (100 by default, which is all that dcgan gets)
    RIVAL: ["policy=metaschedule", "+policy.num_warmup_samples=32"],
    CHANCE: ["policy=random"],
}
WHOSE = {OURS: OURS, RIVAL: "rival"}  # in prefixes.json
LABELS = {RIVAL: "MetaSchedule", CHANCE: "random search"}
SETTINGS = ["budget.batch=16", "measure.min_repeat_ms=30", "measure.repeats=3", "num_threads=1"]
SETTINGS += ["budget.patience=1000000"]  # equal trials: nothing ends early
SETTINGS += ["deploy=false"]  # a step of its own
SETTINGS += ["measure.finalists=0"]  # of the search alone, as all prefixes of it
# Seconds on two idle cores, where no cell of the kind has been run yet.
GUESSED_TRIAL_S = {OURS: 1.0, RIVAL: 2.3, CHANCE: 0.7}
GUESSED_S = {"list": 20.0, "draft": 60.0, "deploy": 60.0, "prefixes": 600.0, "beside": 420.0}
RACE_FILE = f"ours_{COMPARISON_FILE}"  # in the rival's folder
DRAFTED = "drafted"  # nothing measured
OUR_LAYOUT = "NHWC"  # of tune.py layout=auto on a CPU
IMPORTED = "NCHW"  # how TVM imports a network


@dataclass(kw_only=True)
class Options(ComparisonOptions):
    """Options: ``long`` networks get ``long_seconds`` of ours, ``drafts`` only drafts."""

    networks: list[str] = field(default_factory=lambda: list(NETWORKS))
    many_seeds: list[str] = field(default_factory=lambda: ["dcgan", "bert_tiny"])
    seeds: int = 3
    trials_a_task: int = 20
    long: list[str] = field(default_factory=lambda: ["resnet50", "bert_base"])
    long_seconds: int = 1800
    drafts: list[str] = field(default_factory=lambda: list(CATALOG))
    more: list[str] = field(default_factory=list)
    rival_layout: str = OUR_LAYOUT
    out: str = str(ROOT / "outputs" / "experiments-networks")
    results: str = str(HERE)


class Campaign(Comparison):
    """All steps in order; trials are computed once tasks are listed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        super().__init__(options.runs, ROOT, GUESSED_TRIAL_S | GUESSED_S | {"long": 1.0})

    def folder(self, network: str, policy: str, seed: int) -> Path:
        """The run folder of a cell."""
        layout = self.options.rival_layout
        if policy == RIVAL and layout != IMPORTED:
            policy = f"{policy}-{layout}"
        name = f"{plain_name(network)}-{policy}-{self.options.trials_a_task}-{seed}"
        return self.runs / "tune" / name

    def long_folder(self, network: str) -> Path:
        """The run folder of a network with a budget of seconds."""
        name = f"{plain_name(network)}-{OURS}-{self.options.long_seconds}s-0"
        return self.runs / "tune" / name

    def steps(self) -> Iterator[Step]:
        """All policies on each network; then further seeds, large networks, drafts."""
        for network in self.options.networks:
            listing = self._listing(network)
            yield listing
            built = yield from self._pair(network, 0, listing)
            others = ",".join(str(self.folder(network, name, 0)) for name in (RIVAL, CHANCE))
            words = [f"compare=[{others}]"]
            yield self._beside(self.folder(network, OURS, 0), words, built, self.race(network))
        for seed in range(1, self.options.seeds):
            for network in self.options.many_seeds:
                listing = self._listing(network)
                yield listing
                yield from self._pair(network, seed, listing)
        for network in self.options.long:
            seconds, folder = self.options.long_seconds, self.long_folder(network)
            budget = [f"budget.seconds={seconds}", "budget.trials=100000"]
            words = self._words(network, 0, *POLICIES[OURS], *budget)
            tuned = self.tuned(folder.name, words, kind="long", size=seconds)
            built_long = self.build(tuned)
            yield from (tuned, built_long, self._beside(folder, [], (built_long,)))
        for network in self.options.drafts:
            drafted = self.draft(network, 0)
            yield from (drafted, self.build(drafted))

    def _pair(
        self, network: str, seed: int, listing: Step
    ) -> Generator[Step, None, tuple[Step, ...]]:
        """Draft, all policies, prefixes; return the steps that leave the libraries."""
        draft = self.draft(network, seed)
        yield draft
        built: dict[str, Step] = {}
        for policy in POLICIES:
            folder, trials = self.folder(network, policy, seed), self.trials(network)
            layout = [f"layout={self.options.rival_layout}"] if policy == RIVAL else []
            budget = f"budget.trials={trials}"
            words = self._words(network, seed, *POLICIES[policy], budget, *layout)
            tuned = self.tuned(folder.name, words, kind=policy, size=trials, needs=(listing,))
            yield tuned
            built[policy] = self.build(tuned)
            yield built[policy]
        yield self._prefixes(network, seed, (draft, built[OURS], built[RIVAL]))
        return tuple(built.values())

    def _words(self, network: str, seed: int, *words: str) -> list[str]:
        return [f"network={network}", *words, *SETTINGS, f"seed={seed}", *self.options.more]

    def _listing(self, network: str) -> Step:
        words = [f"network={network}", "list=true"]
        return self.tuned(f"{plain_name(network)}-tasks", words, kind="list", resumes=False)

    def draft(self, network: str, seed: int) -> Step:
        """A network after a minute: import and draft, nothing measured."""
        words = [f"network={network}", "effort=draft", "deploy=false", f"seed={seed}"]
        words += [f"sizes.layers={LAYERS[network]}"] if network in LAYERS else []
        name = f"{plain_name(network)}-draft-{seed}"
        return self.tuned(name, words, kind="draft", resumes=False)  # timed from an empty folder

    def build(self, run: Step) -> Step:
        """Build the network of a run as a library; compare with torch."""
        folder = run.leaves.parent
        words = ["deploy", f"run={folder}", "baselines=[]"]
        name, leaves = f"{folder.name}, built", folder / DEPLOY_FILE
        return Step(name=name, words=words, leaves=leaves, kind="deploy", needs=(run,))

    def _prefixes(self, network: str, seed: int, needs: tuple[Step, ...]) -> Step:
        folder, rival = (self.folder(network, policy, seed) for policy in (OURS, RIVAL))
        drafts = self.draft(network, seed).leaves.parent
        script = "experiments/networks/prefixes.py"
        words = [script, f"run={folder}", f"rival={rival}", f"drafts={drafts}"]
        name, made = f"{folder.name}, prefixes", folder / PREFIXES_FILE
        leaves = rival / PREFIXES_FILE  # ours may race rivals of several layouts
        return Step(name=name, words=words, leaves=leaves, made=made, kind="prefixes", needs=needs)

    def race(self, network: str) -> Path:
        """The file of our final network beside the rival's; a file for each layout.

        Earlier campaigns have it in our folder only, where the rival has the name of its folder.
        """
        rival, ours = self.folder(network, RIVAL, 0), self.folder(network, OURS, 0)
        earlier = ours / COMPARISON_FILE
        compared = SideBySide.read(earlier)
        is_earlier = compared is not None and rival.name in compared.by_name
        return earlier if is_earlier and not (rival / RACE_FILE).is_file() else rival / RACE_FILE

    def _beside(
        self, folder: Path, words: list[str], needs: tuple[Step, ...], leaves: Path | None = None
    ) -> Step:
        made = folder / COMPARISON_FILE
        name = f"{folder.name}, beside others"
        baselines = "baselines=[eager,compile,onnxruntime,untuned,draft]"
        words = ["deploy", f"run={folder}", baselines, *words]
        return Step(
            name=name, words=words, leaves=leaves or made, made=made, kind="beside", needs=needs
        )

    def starts(self, network: str, seed: int) -> tuple[float | None, float | None]:
        """Seconds from an empty folder to the end of import and draft."""
        step = self.draft(network, seed)
        took_s, metrics = self.times.last_s(step), load_metrics(step.leaves.parent)
        if took_s is None or metrics is None:
            return None, None
        return took_s - metrics["total_seconds"], took_s

    def trials(self, network: str) -> int:
        """Trials of a network; 25 tasks are assumed before they are listed."""
        listed = load_metrics(self._listing(network).leaves.parent) or {}
        return self.options.trials_a_task * int(listed.get("num_tuned", 25))


def plain_name(network: str) -> str:
    """A network's name as a folder may have it."""
    return re.sub(r"[^\w.-]", "-", network)


def cells_of(campaign: Campaign) -> list[Cell]:
    """Finished cells; unfinished cells are left out."""
    options, cells = campaign.options, []
    networks = list(dict.fromkeys([*options.networks, *options.many_seeds]))
    done = {step.leaves.parent for step in campaign.steps() if step.kind in POLICIES and step.done}
    for network in networks:
        for seed in range(options.seeds):
            imported_s, drafted_s = campaign.starts(network, seed)
            ours, rival = (campaign.folder(network, policy, seed) for policy in (OURS, RIVAL))
            points, settled_s = prefixes_of(rival, ours)
            for policy in POLICIES:
                folder = campaign.folder(network, policy, seed)
                if folder not in done:
                    continue
                run = read_network_run(folder)
                without = policy != OURS or drafts_first(run)  # the draft is no part of its start
                cell = Cell(
                    network=network,
                    policy=policy,
                    seed=seed,
                    run=run,
                    network_s=run.deployed.get("median_s"),
                    start_s=imported_s if without else drafted_s,
                    drafted_s=drafted_s if policy == OURS else None,
                    points=[p for p in points if p.whose == WHOSE.get(policy)],
                    settled_s=settled_s if policy == RIVAL else None,
                )
                cells.append(cell)
    return cells


def drafts_of(campaign: Campaign) -> list[dict[str, Any]]:
    """A row a network that was drafted and built."""
    rows = []
    for network in campaign.options.drafts:
        step = campaign.draft(network, 0)
        if campaign.build(step).done:
            deployed = read_network_run(step.leaves.parent).deployed
            rows.append(
                {
                    "network": network,
                    "policy": DRAFTED,
                    "layers": LAYERS.get(network),
                    "tasks": deployed["tasks"],
                    "drafted_s": campaign.times.last_s(step),
                    "build_s": deployed["seconds"]["build"],
                    "network_s": deployed["median_s"],
                    "relative_error": deployed["relative_error"],
                    "library_mb": deployed["size_bytes"] / 1e6,
                    "load_s": deployed["load_s"],
                }
            )
    return rows


def contenders_of(campaign: Campaign) -> list[dict[str, Any]]:
    """Rows of all networks with a comparison."""
    options = campaign.options
    places = {n: (campaign.folder(n, OURS, 0), campaign.race(n)) for n in options.networks}
    long = {name: campaign.long_folder(name) for name in options.long}
    places |= {name: (folder, folder / COMPARISON_FILE) for name, folder in long.items()}
    rows = []
    for network, (folder, path) in places.items():
        if path.is_file():
            run = replace(read_network_run(folder), comparison=SideBySide.read(path))
            found = baseline_rows(network, run, OURS)
            names = {campaign.folder(network, one, 0).name: label for one, label in LABELS.items()}
            for row in found:  # libraries of other runs have the names of their folders
                row["contender"] = names.get(row["contender"], row["contender"])
            rows += found
    return rows


def run(options: Options) -> dict[str, Any]:
    """Run the missing steps, then write the tables."""
    campaign = Campaign(options)
    if options.plan:
        return campaign.show_plan()
    if networks := {*options.networks, *options.many_seeds}:
        check_kept(options, product(networks, POLICIES, range(options.seeds)))
    if not options.summary:
        campaign.run_all()
    cells, drafts = cells_of(campaign), drafts_of(campaign)
    if drafts:
        path = options.folder / "drafts.csv"
        write_table(path, merged_table(path, drafts, ("network",)), floats=".6g")
    elif not cells:
        raise DataError(f"{options.runs}: no finished cell; run without summary=true")
    if cells:
        write_cells(options, cells, contenders_of(campaign))
    return {"cells": len(cells), "drafts": len(drafts), "results": str(options.folder)}


def check_kept(options: Options, cells: Iterable[tuple[str, str, int]]) -> None:
    """Raise PrunerError where the tables have a cell that is not among `cells`."""
    path, made = options.folder / "results.csv", {(*cell[:2], str(cell[2])) for cell in cells}
    for row in read_table(path):
        if (cell := (row["network"], row["policy"], row["seed"])) not in made:
            raise PrunerError(f"{path}: it would lose its row of {' '.join(cell)}; add results=DIR")


def write_cells(options: Options, cells: list[Cell], contenders: list[dict[str, Any]]) -> None:
    """Write the tables of finished cells, and the plot of contenders."""
    check_kept(options, ((cell.network, cell.policy, cell.seed) for cell in cells))
    rows = result_rows(cells)
    summary = summarise(rows)
    records: list[dict[str, Any]] = summary.to_dict("records")
    tables = {
        "results": rows,
        "summary": records,
        "prefixes": prefix_rows(cells),
        "contenders": contenders,
    }
    for name, content in tables.items():
        write_table(options.folder / f"{name}.csv", content, floats=".6g")
    (options.folder / "tables.md").write_text(markdown(summary, contenders), encoding="utf-8")
    if any(row["error"] is None for row in contenders):
        place = PICTURE if options.folder == HERE else options.folder / PICTURE.name
        place.parent.mkdir(exist_ok=True)
        place.write_text(picture(contenders), encoding="utf-8")


def picture(contenders: list[dict[str, Any]]) -> str:
    """Plot median latencies as SVG, without unscheduled networks."""
    ran = [row for row in contenders if row["error"] is None]
    rows = pd.DataFrame([row for row in ran if row["contender"] != UNSCHEDULED] or ran)
    rows["median_ms"] = 1e3 * rows["median_s"]
    plot = Plot(
        title="Built networks on a CPU, batch 1: median latency",
        kind="bar",
        x="network",
        y="median_ms",
        series="contender",
        ylabel="latency (ms)",
    )
    return svg(plot, plot_series(plot, rows))


def markdown(summary: pd.DataFrame, contenders: list[dict[str, Any]]) -> str:
    """Both tables as Markdown: searches compared, and built networks with contenders."""
    head = ["network", "policy", "seeds", "trials", "minutes", "drafted, ms", "after, s",
            "built, ms", "to MetaSchedule's latency, s", "times less",
            "built over MetaSchedule's"]  # fmt: skip
    lines = []
    for row in summary.to_dict("records"):
        cells = [row["network"], row["policy"], f"{row['seeds']:g}", f"{row['trials']:g}"]
        cells += [f"{row['total_s'] / 60:.1f}", f"{1e3 * row['drafted_network_s']:.2f}"]
        cells += [f"{row['drafted_s']:.0f}", f"{1e3 * row['network_s']:.2f}"]
        cells.append(f"{row['seconds_to_rival']:.0f}")
        cells += [f"{row['speedup']:.2f}", f"{row['network_over_rival']:.2f}"]
        lines.append(["" if cell == "nan" else cell for cell in cells])
    names = list(dict.fromkeys(row["contender"] for row in contenders))
    networks = list(dict.fromkeys(row["network"] for row in contenders))
    found = {(row["network"], row["contender"]): row.get("median_s") for row in contenders}
    medians = [[found.get((network, name)) for name in names] for network in networks]
    others = [
        [network, *("" if s is None else f"{1e3 * s:.2f}" for s in row)]
        for network, row in zip(networks, medians, strict=True)
    ]
    return f"{markdown_table(head, lines)}\n\n{markdown_table(['median ms', *names], others)}\n"


if __name__ == "__main__":
    run_script(Options, run, __doc__)
