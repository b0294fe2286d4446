"""All adaptation methods on all pairs of platforms: results.csv, summary.json and a plot a pair.

    python experiments/adaptation/run.py [data.root] [pairs] [more options of adapt.py ...]

`pairs`: such as k80-v100,cpu-sse4-cpu-avx2, or all. A pair is one run of ``adapt.py``, which goes
on where an earlier start stopped; its rows replace the pair's earlier ones. With OUT=DIR in the
environment runs and results go there.
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


def run_pair(source: str, target: str, data: str, more: list[str]) -> dict:
    """The last line of one run of adapt.py, new or gone on with."""
    run = f"book-{source}-{target}"
    folder = RUNS / "adapt" / run
    options = (
        [f"resume={folder}"]
        if (folder / "config.yaml").is_file()
        else [f"source={source}", f"target={target}", f"data.root={data}", f"run_id={run}",
              f"outputs={RUNS}", "method=all", *more]
    )  # fmt: skip
    command = [sys.executable, "adapt.py", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def keep(source: str, target: str, result: dict) -> None:
    """Put a pair's tables, summary and plot into the folder of results."""
    pair = f"{source} to {target}"
    with Path(ROOT, result["results"]).open() as file:
        rows = [{"pair": pair, **row} for row in csv.DictReader(file)]
    merge(OUT / "results.csv", pair, rows)
    cells = sorted(Path(ROOT, result["run_dir"], "cells").glob("*.json"))
    merge(OUT / "curves.csv", pair, [row for cell in cells for row in curve(pair, cell)])
    summary = OUT / "summary.json"
    known = json.loads(summary.read_text()) if summary.exists() else {}
    known[f"{source}-{target}"] = {
        name: result[name] for name in ("baseline", "seeds", "source_top1_before", "methods")
    }
    summary.write_text(json.dumps(known, indent=1) + "\n")
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
    earlier = list(csv.DictReader(table.open())) if table.exists() else []
    rows += [row for row in earlier if row["pair"] != pair]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        # A stable sort: seeds and trials stay in their order.
        writer.writerows(sorted(rows, key=lambda row: (row["pair"], row["method"])))


def main() -> None:
    """Run the wanted pairs one after another."""
    data = sys.argv[1] if len(sys.argv) > 1 else str(ROOT.parent / "shared/data/gpu-records")
    wanted = sys.argv[2] if len(sys.argv) > 2 else "all"
    for source, target in [*GPU_PAIRS, *CPU_PAIRS]:
        if wanted == "all" or f"{source}-{target}" in wanted.split(","):
            root = "datasets/bundled" if source in CPUS else data
            keep(source, target, run_pair(source, target, root, sys.argv[3:]))


if __name__ == "__main__":
    main()
