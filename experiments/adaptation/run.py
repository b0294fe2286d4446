"""All adaptation methods on all pairs of platforms: results.csv, summary.json and a plot a pair.

    python experiments/adaptation/run.py [data.root] [pairs] [more options of adapt.py ...]

`pairs`: such as k80-v100,cpu-sse4-cpu-avx2, or all. A pair is one run of ``adapt.py``, which goes
on where an earlier start stopped; its rows replace the pair's earlier ones.
"""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GPU_PAIRS = [("k80", "v100"), ("k80", "mi50"), ("v100", "k80"), ("v100", "a100"), ("v100", "mi50")]
CPUS = ("cpu-sse4", "cpu-avx2", "cpu-avx512")
CPU_PAIRS = [(source, target) for source in CPUS for target in CPUS if source != target]


def run_pair(source: str, target: str, data: str, more: list[str]) -> dict:
    """The last line of one run of adapt.py, new or gone on with."""
    run = f"book-{source}-{target}"
    folder = ROOT / "outputs" / "adapt" / run
    options = (
        [f"resume={folder}"]
        if (folder / "config.yaml").is_file()
        else [f"source={source}", f"target={target}", f"data.root={data}", f"run_id={run}",
              "method=all", *more]
    )  # fmt: skip
    command = [sys.executable, "adapt.py", *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def keep(source: str, target: str, result: dict) -> None:
    """Put a pair's table, summary and plot into this folder."""
    rows = list(csv.DictReader((ROOT / result["results"]).open()))
    table = HERE / "results.csv"
    earlier = list(csv.DictReader(table.open())) if table.exists() else []
    rows += [r for r in earlier if (r["source"], r["target"]) != (source, target)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=names)
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda r: (r["source"], r["target"], r["method"])))
    summary = HERE / "summary.json"
    known = json.loads(summary.read_text()) if summary.exists() else {}
    known[f"{source}-{target}"] = {
        name: result[name] for name in ("baseline", "seeds", "source_top1_before", "methods")
    }
    summary.write_text(json.dumps(known, indent=1) + "\n")
    shutil.copy(ROOT / result["plot"], HERE / f"{source}-{target}.png")


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
