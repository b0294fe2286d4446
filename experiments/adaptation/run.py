"""All adaptation methods on all pairs of platforms: tables of numbers, and a plot a pair.

    python experiments/adaptation/run.py [data.root] [pairs] [more options of adapt.py ...]

`pairs`: such as k80-v100,cpu-sse4-cpu-avx2, or all; num_workers=N: as many pairs at a time. The
main methods run on every pair, the others and the ablations of MoA on two; method= in the options
chooses for all. With checkpoint=RUN the pair starts from that model and bears its name. A pair is
one run of ``adapt.py``, with a log beside it, which goes on where an earlier start stopped, however
it ended, and keeps what it has finished; its rows replace the pair's earlier ones. With another
budget=, seeds= or model of the same name give another OUT, or adapt.py refuses.
Writes results.csv, curves.csv, summary.json, results.md and PAIR.png; with OUT=DIR in the
environment runs and results go there.
"""

import csv
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pruner.study.commands import Commands

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = Path(os.environ.get("OUT", HERE)).resolve()
RUNS = ROOT / "outputs" if OUT == HERE else OUT
GPU_PAIRS = [("k80", "v100"), ("k80", "mi50"), ("v100", "k80"), ("v100", "a100"), ("v100", "mi50")]
CPUS = ("cpu-sse4", "cpu-avx2", "cpu-avx512")
CPU_PAIRS = [(source, target) for source in CPUS for target in CPUS if source != target]
MORE_PAIRS = [("mi50", "k80"), ("mi50", "v100"), ("mi50", "a100"), ("k80", "a100")]  # not in all
BOTH_WAYS = [("k80", "v100"), ("v100", "k80")]  # pairs for the methods that are not MAIN
# From scratch, random and Ansor are in every run.
MAIN = (
    "none", "continue", "finetune", "distill", "mtl", "moa", "moa_official", "moa_gentle",
)  # fmt: skip
# What decides a run's results, where the command line does not say it.
DECIDING = {"budget": "default", "seeds": "[0,1,2,3,4]", "policy": "pool"}
METHODS = sorted(path.stem for path in (ROOT / "conf" / "adaptation").glob("*.yaml"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two platforms; `model`: what the source model is called, where one is given."""

    source: str
    target: str
    model: str = ""

    @property
    def key(self) -> str:
        """Name of its plot and of its part of the summary."""
        return "-".join(part for part in (self.source, self.model, self.target) if part)

    @property
    def title(self) -> str:
        """As the tables have it."""
        model = f" ({self.model})" if self.model else ""
        return f"{self.source}{model} to {self.target}"

    @property
    def methods(self) -> Sequence[str]:
        """What is worth its time on this pair."""
        return METHODS if (self.source, self.target) in BOTH_WAYS else MAIN


def run_pair(pair: Pair, options: Mapping[str, str], commands: Commands) -> Path | None:
    """The folder of one run of adapt.py, new or gone on with; None where it failed."""
    run = f"book-{pair.key}"
    folder = RUNS / "adapt" / run
    # A run that goes on is told everything again: adapt.py refuses what would change its results.
    start = {"method": f"[{','.join(pair.methods)}]", **DECIDING, **options}
    if pair.source in CPUS:
        start["data.root"] = str(ROOT / "datasets/bundled")
    new = {"source": pair.source, "target": pair.target, "run_id": run, "outputs": str(RUNS)}
    start |= {"resume": str(folder)} if (folder / "config.yaml").is_file() else new
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{run}.log"
    with path.open("w") as log:
        named = [f"{name}={value}" for name, value in start.items()]
        code = commands.run([sys.executable, "adapt.py", *named], log)
    if code:
        errors = [line for line in path.read_text().splitlines() if line.startswith("error: ")]
        reason = errors[-1] if errors else f"exit code {code}"
        print(f"{pair.title}: {reason}; log: {path}", file=sys.stderr)
    return None if code else folder


def keep(pair: Pair, run: Path) -> None:
    """Put a pair's tables, summary and plot into the folder of results."""
    result = json.loads((run / "metrics.json").read_text())
    with (run / "results.csv").open(newline="") as file:
        rows = [{"pair": pair.title, **row} for row in csv.DictReader(file)]
    merge(OUT / "results.csv", pair.title, rows)
    cells = [run / "cells" / f"{row['method']}-seed-{row['seed']}.json" for row in rows]
    merge(OUT / "curves.csv", pair.title, [row for cell in cells for row in curve(pair, cell)])
    summary = OUT / "summary.json"
    known = json.loads(summary.read_text()) if summary.exists() else {}
    known[pair.key] = {
        name: result[name] for name in ("baseline", "seeds", "source_top1_before", "methods")
    }
    known = dict(sorted(known.items(), key=lambda item: (item[0].startswith(CPUS), item[0])))
    summary.write_text(json.dumps(known, indent=1) + "\n")
    (OUT / "results.md").write_text("\n".join(section(*item) for item in known.items()))
    shutil.copy(run / "curves.png", OUT / f"{pair.key}.png")


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


def merge(table: Path, pair: str, rows: list[dict]) -> None:
    """Replace the rows of a pair."""
    earlier = []
    if table.exists():
        with table.open(newline="") as file:
            earlier = list(csv.DictReader(file))
    rows = [*rows, *(row for row in earlier if row["pair"] != pair)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        # A stable sort: seeds and trials stay in their order.
        writer.writerows(sorted(rows, key=lambda row: (row["pair"], row["method"])))


def section(pair: str, result: dict) -> str:
    """A pair's tables: means over seeds with 95 % bootstrap intervals; p of one-sided tests."""
    methods = result["methods"]
    head = ("area", "trials to target", "seconds to target", "got there", "speed-up in seconds",
            "p better than scratch", "than finetune", "source Top-1 afterwards")  # fmt: skip
    lines = [f"## {pair}", "", f"![curves]({pair}.png)", "", *heading("method", *head)]
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
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    before = number(result["source_top1_before"])
    lines += ["", f"Source Top-1 before: {before}. Top-1 / Top-5 by number of target labels:", ""]
    learners = {name: found for name, found in methods.items() if "top1_by_labels" in found}
    sizes = list(next(iter(learners.values()))["top1_by_labels"])
    lines += heading("method", *sizes)
    for name, found in learners.items():
        top1, top5 = found["top1_by_labels"], found["top5_by_labels"]
        cells = [f"{top1[size]['mean']:.3f} / {top5[size]['mean']:.3f}" for size in sizes]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def heading(*names: str) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


def number(value: float | None) -> str:
    """Three digits, nothing where there is none."""
    return "" if value is None else f"{value:.3f}"


def interval(found: dict, digits: int) -> str:
    """A mean and its interval."""
    low, high = found["interval"]
    return f"{found['mean']:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def pairs_of(wanted: str, model: str) -> list[Pair]:
    """The pairs that a command line names, each once."""
    book = {"-".join(pair): pair for pair in (*GPU_PAIRS, *CPU_PAIRS)}
    known = book | {"-".join(pair): pair for pair in MORE_PAIRS}
    chosen = list(book) if wanted == "all" else list(dict.fromkeys(wanted.split(",")))
    if unknown := sorted(set(chosen) - set(known)):
        raise SystemExit(f"{', '.join(unknown)}: no such pair; known: {', '.join(known)}, all")
    return [Pair(source=known[c][0], target=known[c][1], model=model) for c in chosen]


def options_of(given: Sequence[str]) -> dict[str, str]:
    """Options by name; num_workers= is checked, checkpoint= a path from here."""
    wrong = [option for option in given if not option.split("=", 1)[-1] or "=" not in option]
    options = dict(option.split("=", 1) for option in given if option not in wrong)
    if not options.get("num_workers", "1").isdecimal() or options.get("num_workers") == "0":
        wrong.append(f"num_workers={options['num_workers']}")
    if wrong:
        raise SystemExit(f"{wrong[0]}: options are NAME=VALUE, num_workers a number from 1")
    if "checkpoint" in options:
        options["checkpoint"] = str(Path(options["checkpoint"]).resolve())
    return options


def main() -> None:
    """Run the wanted pairs, several at a time."""
    data = sys.argv[1] if len(sys.argv) > 1 else str(ROOT.parent / "shared/data/gpu-records")
    options = {"data.root": str(Path(data).resolve()), **options_of(sys.argv[3:])}
    workers = int(options.pop("num_workers", "1"))
    model = Path(options.get("checkpoint", ""))
    pairs = pairs_of(
        sys.argv[2] if len(sys.argv) > 2 else "all",
        (model.parent if model.is_file() else model).name,
    )
    failed = []
    with (
        Commands(ROOT) as commands,
        closing(
            commands.each(pairs, lambda p: (p, run_pair(p, options, commands)), workers)
        ) as ended,
    ):
        for number, (pair, folder) in enumerate(ended, 1):
            if folder is None:
                failed.append(pair.title)
                continue
            keep(pair, folder)
            print(f"{pair.title}: {number} of {len(pairs)} pairs", file=sys.stderr)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; the same command goes on")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the same command goes on") from None
