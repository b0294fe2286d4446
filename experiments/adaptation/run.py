"""All adaptation methods on all pairs of platforms: tables of numbers, and a plot a pair.

    python experiments/adaptation/run.py [data.root] [pairs] [more options of adapt.py ...]

`pairs`: such as k80-v100,cpu-sse4-cpu-avx2, or all. What decides comes first: the main methods on
every pair, then the ablations of MoA on two, then the other methods on every pair. With method= in
the options there is one pass, of these methods. A pair is one run of ``adapt.py``, which goes on
where an earlier start stopped, however it ended, and keeps what it has finished; its rows replace
the pair's earlier ones. Writes results.csv, curves.csv, summary.json, results.md and PAIR.png; with
OUT=DIR in the environment runs and results go there.
"""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = Path(os.environ.get("OUT", HERE)).resolve()
RUNS = ROOT / "outputs" if OUT == HERE else OUT
GPU_PAIRS = [("k80", "v100"), ("k80", "mi50"), ("v100", "k80"), ("v100", "a100"), ("v100", "mi50")]
CPUS = ("cpu-sse4", "cpu-avx2", "cpu-avx512")
CPU_PAIRS = [(source, target) for source in CPUS for target in CPUS if source != target]
# From scratch, random and Ansor are in every run.
MAIN = ("none", "continue", "finetune", "moa", "moa_official", "moa_gentle")
ABLATIONS = ("moa_m50", "moa_m90", "moa_period4", "moa_online")
ABLATED = [("k80", "v100"), ("v100", "k80")]
METHODS = {path.stem for path in (ROOT / "conf" / "adaptation").glob("*.yaml")}
REST = tuple(sorted(METHODS - {*MAIN, *ABLATIONS}))
Pair = tuple[str, str]


def passes(pairs: list[Pair]) -> list[tuple[tuple[str, ...], list[Pair]]]:
    """Methods, and the pairs that they are for, in the order in which they decide something."""
    return [
        (MAIN, pairs),
        (ABLATIONS, [pair for pair in pairs if pair in ABLATED]),
        (REST, pairs),
    ]


def run_name(source: str, target: str) -> str:
    """Folder of a pair's run."""
    return f"book-{source}-{target}"


def finished(source: str, target: str) -> set[str]:
    """The methods that the pair's run has a summary of."""
    path = RUNS / "adapt" / run_name(source, target) / "metrics.json"
    return set(json.loads(path.read_text())["methods"]) if path.is_file() else set()


def run_pair(source: str, target: str, data: str, more: list[str]) -> dict:
    """The last line of one run of adapt.py, new or gone on with."""
    run = run_name(source, target)
    folder = RUNS / "adapt" / run
    options = (
        [f"resume={folder}"]
        if (folder / "config.yaml").is_file()
        else [f"source={source}", f"target={target}", f"data.root={data}", f"run_id={run}",
              f"outputs={RUNS}"]
    )  # fmt: skip
    command = [sys.executable, "adapt.py", *options, *more]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def keep(source: str, target: str, result: dict) -> None:
    """Put a pair's tables, summary and plot into the folder of results."""
    pair = f"{source} to {target}"
    with Path(ROOT, result["results"]).open() as file:
        rows = [{"pair": pair, **row} for row in csv.DictReader(file)]
    merge(OUT / "results.csv", pair, rows)
    cells = [
        Path(ROOT, result["run_dir"], "cells", f"{row['method']}-seed-{row['seed']}.json")
        for row in rows
    ]
    merge(OUT / "curves.csv", pair, [row for cell in cells for row in curve(pair, cell)])
    summary = OUT / "summary.json"
    known = json.loads(summary.read_text()) if summary.exists() else {}
    known[f"{source}-{target}"] = {
        name: result[name] for name in ("baseline", "seeds", "source_top1_before", "methods")
    }
    summary.write_text(json.dumps(known, indent=1) + "\n")
    (OUT / "results.md").write_text("\n".join(section(*pair) for pair in known.items()))
    shutil.copy(Path(ROOT, result["plot"]), OUT / f"{source}-{target}.png")


def curve(pair: str, cell: Path) -> list[dict]:
    """The curve of one method and seed at every twentieth trial."""
    found = json.loads(cell.read_text())
    points = zip(found["curve"]["trials"], found["curve"]["relative_latency"], strict=True)
    known = {"pair": pair, "method": found["method"], "seed": found["seed"]}
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


def main() -> None:
    """Run the wanted pairs one after another."""
    data = sys.argv[1] if len(sys.argv) > 1 else str(ROOT.parent / "shared/data/gpu-records")
    wanted, more = sys.argv[2] if len(sys.argv) > 2 else "all", sys.argv[3:]
    pairs = [
        pair
        for pair in (*GPU_PAIRS, *CPU_PAIRS)
        if wanted == "all" or "-".join(pair) in wanted.split(",")
    ]
    given = any(option.startswith("method=") for option in more)
    for methods, chosen in [((), pairs)] if given else passes(pairs):
        for source, target in chosen:
            if methods and methods != REST and set(methods) <= finished(source, target):
                continue  # the last pass brings the tables up to date
            root = "datasets/bundled" if source in CPUS else data
            options = [f"method=[{','.join(methods)}]", *more] if methods else more
            keep(source, target, run_pair(source, target, root, options))


if __name__ == "__main__":
    main()
