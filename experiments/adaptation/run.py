"""Compare all adaptation methods on all pairs of platforms.

    python -m experiments.adaptation.run data.root=DIR [pairs=[k80-v100,cpu-sse4-cpu-avx2]]

The script writes tables and a plot for each pair. Without pairs= it runs all pairs of the book;
num_workers=N runs N pairs at a time. The main methods run on every pair. The other methods and the
ablations of MoA run on two pairs; method= chooses the methods for all pairs. With checkpoint=RUN a
pair starts from this model and gets its name. more=[...] passes further options to adapt.py.

A pair is one run of ``adapt.py`` with a log. The same command continues an interrupted run. Rows of
a pair replace its earlier rows. Another budget=, seeds= or model of the same name needs another
out=; adapt.py refuses the present one. Output: results.csv, curves.csv, summary.json, results.md
and PAIR.png; with out=DIR runs and results go there.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pruner.cli.shared.output import say
from pruner.cli.shared.script import Data, keep_tables, run_script
from pruner.commands import ONE_THREAD, Commands
from pruner.errors import PrunerError, check_chosen
from pruner.files import merged_table, read_table, write_json, write_table
from pruner.search.offline.adaptation_run import MethodComparison, MethodRun, TuningCurve
from pruner.study.adaptation.cells import plot_curves
from pruner.study.markdown import markdown_table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GPU_PAIRS = [("k80", "v100"), ("k80", "mi50"), ("v100", "k80"), ("v100", "a100"), ("v100", "mi50")]
CPUS = ("cpu-sse4", "cpu-avx2", "cpu-avx512")
CPU_PAIRS = [(source, target) for source in CPUS for target in CPUS if source != target]
MORE_PAIRS = [("mi50", "k80"), ("mi50", "v100"), ("mi50", "a100"), ("k80", "a100")]  # not in all
BOTH_WAYS = [("k80", "v100"), ("v100", "k80")]  # pairs for the methods that are not MAIN
# From scratch, with and without a draft, and random search are in every run.
MAIN = (
    "none", "continue", "finetune", "distill", "multi_task", "moa", "moa_official", "moa_gentle",
)  # fmt: skip
# Ablations of MoA, and a gentler fit (a smaller rate, no weight decay): other arguments.
GENTLE = "fit:{_target_:pruner.models.adaptation.fitting.gentle_fit}"
VARIANTS = {
    "moa_m50": "{of:moa,momentum:0.5}",
    "moa_m90": "{of:moa,momentum:0.9}",
    "moa_buffers": "{of:moa,average_buffers:true}",
    "moa_online": "{of:moa,normalisation:online}",
    "moa_period4": "{of:moa,period:4}",
    "moa_gentle": f"{{of:moa,{GENTLE}}}",
    "finetune_gentle": f"{{of:finetune,{GENTLE}}}",
}
METHODS = sorted(
    [*VARIANTS, *(path.stem for path in (ROOT / "conf" / "adaptation").glob("*.yaml"))]
)


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    pairs: list[str] | None = None
    method: list[str] | None = None
    checkpoint: str | None = None
    budget: str = "default"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    policy: str = "pool"
    more: list[str] = field(default_factory=list)
    num_workers: int = 1
    out: str = str(HERE)

    @property
    def folder(self) -> Path:
        """Folder of the results."""
        return Path(self.out).resolve()

    @property
    def runs(self) -> Path:
        """Folder of the runs."""
        return ROOT / "outputs" if self.folder == HERE else self.folder

    @property
    def model(self) -> str:
        """The name of a given source model: that of its run."""
        path = Path(self.checkpoint or "")
        return (path.parent if path.is_file() else path).name

    def deciding(self, pair: "Pair") -> dict[str, str]:
        """The options that determine a run's results; adapt.py gets them again to resume."""
        methods = self.method or pair.methods
        told = {
            "method": _list(methods),
            "budget": self.budget,
            "seeds": _list(self.seeds),
            "policy": self.policy,
            "data.root": str(Path(self.data.root).resolve()),
        }
        if pair.source in CPUS:
            told["data.root"] = str(ROOT / "datasets/bundled")
        if self.checkpoint:
            told["checkpoint"] = str(Path(self.checkpoint).resolve())
        told |= {f"+variants.{name}": VARIANTS[name] for name in methods if name in VARIANTS}
        return told | dict(word.split("=", 1) for word in self.more)


def _list(values: Sequence[object]) -> str:
    return f"[{','.join(map(str, values))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two platforms; `model`: the name of a given source model."""

    source: str
    target: str
    model: str = ""

    @property
    def key(self) -> str:
        """Name of its plot and of its part of the summary."""
        return "-".join(part for part in (self.source, self.model, self.target) if part)

    @property
    def title(self) -> str:
        """The pair's name in the tables."""
        model = f" ({self.model})" if self.model else ""
        return f"{self.source}{model} to {self.target}"

    @property
    def methods(self) -> Sequence[str]:
        """The methods to run on this pair."""
        return METHODS if (self.source, self.target) in BOTH_WAYS else MAIN


def run_pair(pair: Pair, options: Options, commands: Commands) -> Path | None:
    """Start or resume a run of adapt.py; returns its folder, None where it failed."""
    run = f"book-{pair.key}"
    folder = options.runs / "adapt" / run
    start = options.deciding(pair)
    new = {
        "source": pair.source,
        "target": pair.target,
        "run_id": run,
        "outputs": str(options.runs),
    }
    start |= {"resume": str(folder)} if (folder / "config.yaml").is_file() else new
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{run}.log"
    named = [f"{name}={value}" for name, value in start.items()]
    code = commands.run([sys.executable, "adapt.py", *named], path)
    if code:
        errors = [line for line in path.read_text().splitlines() if line.startswith("error: ")]
        reason = errors[-1] if errors else f"exit code {code}"
        say(f"{pair.title}: {reason}; log: {path}")
    return None if code else folder


def keep(pair: Pair, run: Path, out: Path) -> None:
    """Put a pair's tables, summary and plot into the folder of results."""
    result = json.loads((run / "metrics.json").read_text())
    rows = [{"pair": pair.title, **row} for row in read_table(run / "results.csv")]
    merge(out / "results.csv", rows)
    cells = [run / "cells" / f"{row['method']}-seed-{row['seed']}.json" for row in rows]
    merge(out / "curves.csv", [row for cell in cells for row in curve(pair, cell)])
    summary = out / "summary.json"
    known = json.loads(summary.read_text()) if summary.exists() else {}
    known[pair.key] = {
        name: result[name] for name in ("baseline", "seeds", "source_top1_before", "methods")
    }
    known = dict(sorted(known.items(), key=lambda item: (item[0].startswith(CPUS), item[0])))
    write_json(summary, known, indent=1)
    (out / "results.md").write_text("\n".join(section(*item) for item in known.items()))
    draw(out, pair.key, pair.title)


def draw(out: Path, key: str, title: str) -> None:
    """The curves of a pair, from the committed table: every twentieth trial."""
    curves: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for row in read_table(out / "curves.csv"):
        if row["pair"] == title:
            points = curves.setdefault((row["method"], int(row["seed"])), [])
            points.append((int(row["trials"]), float(row["relative_latency"])))
    cells = []
    for (method, seed), points in curves.items():
        trials, relative = (np.array(values) for values in zip(*points, strict=True))
        known = TuningCurve(
            trials=trials, relative_latency=relative, elapsed_s=np.full(len(trials), np.nan)
        )
        cells.append(MethodRun(method=method, seed=seed, curve=known))
    plot_curves(MethodComparison(cells, "scratch"), out / f"{key}.png", title, units=["trials"])


def curve(pair: Pair, cell: Path) -> list[dict]:
    """The curve of one method and seed at every twentieth trial."""
    found = json.loads(cell.read_text())
    points = zip(found["curve"]["trials"], found["curve"]["relative_latency"], strict=True)
    known = {"pair": pair.title, "method": found["method"], "seed": found["seed"]}
    return [
        {**known, "trials": trials, "relative_latency": round(value, 5)}
        for trials, value in points
        if trials % 20 == 0
    ]


def merge(table: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Replace the rows of a pair; seeds and trials stay in their order."""
    merged = merged_table(table, rows, ("pair",))
    write_table(table, sorted(merged, key=lambda row: (row["pair"], row["method"])))


def section(pair: str, result: dict) -> str:
    """A pair's tables of means over seeds, 95 % bootstrap intervals, one-sided p."""
    methods = result["methods"]
    head = ("area", "trials to target", "seconds to target", "got there", "speed-up in seconds",
            "p better than scratch", "than finetune", "source Top-1 afterwards")  # fmt: skip
    rows = []
    for name, found in methods.items():
        reach = found["trials_to_target"]
        cells = [
            interval(found["area"], 3),
            interval(reach, 0),
            interval(found["seconds_to_target"], 0),
            f"{reach['reached']}/{reach['runs']}",
            f"{found['seconds_to_target']['speedup']:.2f}",
            *(number(found["p_better"].get(other)) for other in ("scratch", "finetune")),
            number(found.get("source_top1_after", {}).get("mean")),
        ]
        rows.append([f"`{name}`", *cells])
    lines = [
        f"## {pair}",
        "",
        f"![curves]({pair}.png)",
        "",
        markdown_table(["method", *head], rows),
    ]
    before = number(result["source_top1_before"])
    lines += ["", f"Source Top-1 before: {before}. Top-1 / Top-5 by number of target labels:", ""]
    learners = {name: found for name, found in methods.items() if "top1_by_labels" in found}
    sizes = list(next(iter(learners.values()))["top1_by_labels"])
    rows = []
    for name, found in learners.items():
        top1, top5 = found["top1_by_labels"], found["top5_by_labels"]
        cells = [f"{top1[size]['mean']:.3f} / {top5[size]['mean']:.3f}" for size in sizes]
        rows.append([f"`{name}`", *cells])
    return "\n".join([*lines, markdown_table(["method", *sizes], rows), ""])


def number(value: float | None) -> str:
    """Format a value with three decimals; empty text for None."""
    return "" if value is None else f"{value:.3f}"


def interval(found: dict, digits: int) -> str:
    """A mean and its interval."""
    low, high = found["interval"]
    return f"{found['mean']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def pairs_of(wanted: Sequence[str] | None, model: str) -> list[Pair]:
    """The requested pairs, each once; by default the pairs of the book."""
    book = {"-".join(pair): pair for pair in (*GPU_PAIRS, *CPU_PAIRS)}
    known = book | {"-".join(pair): pair for pair in MORE_PAIRS}
    chosen = list(dict.fromkeys(book if wanted is None else wanted))
    check_chosen("pairs", chosen, known)
    return [Pair(source=known[c][0], target=known[c][1], model=model) for c in chosen]


def run(options: Options) -> dict[str, object]:
    """Run the chosen pairs, several at a time."""
    keep_tables(options, HERE, "budget", "method")  # the tables have all methods of a pair
    pairs, failed = pairs_of(options.pairs, options.model), []
    with (
        Commands(ROOT, ONE_THREAD) as commands,
        closing(
            commands.each(pairs, lambda p: (p, run_pair(p, options, commands)), options.num_workers)
        ) as ended,
    ):
        for number, (pair, folder) in enumerate(ended, 1):
            if folder is None:
                failed.append(pair.title)
                continue
            keep(pair, folder, options.folder)
            say(f"{pair.title}: {number} of {len(pairs)} pairs")
    if failed:
        raise PrunerError(f"failed: {', '.join(failed)}; the same command goes on")
    return {"pairs": len(pairs), "out": str(options.folder)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
