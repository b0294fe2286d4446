"""Time reading of records: this tree against an earlier commit.

    python benchmarks/reading.py [--root DATA_ROOT --rounds 3] [--before COMMIT]
    python benchmarks/reading.py --root datasets/bundled --features [--draft] [--cores 2]

git writes the reader of the other commit into a temporary folder. Each reader reads all records of
the same folder in a process of its own; the processes take turns on one core. The result is the
CPU time of the fastest pass, on which other work has little effect. The last line is one JSON
object, which the results file keeps under the folder's name. ``slower`` is the share by which the
pass of this tree is longer. With ``--features`` a pass ends with the data set of a training: from
an empty cache, and again from the cache; with ``--draft`` it has the analyzer's columns, as in
``make demo``. With ``--cores 2`` passes may use two cores. Then the CPU seconds are those of all
processes, and the wall-clock seconds count, which need an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import earlier, taken_out

from pruner.files import write_json

HERE = Path(__file__).resolve().parent
BEFORE = "a75e953"  # the last commit without the limits of pruner/data/limits.py
PASS_S = 1.0  # of a round: small folders are read several times

READ = """
import json, sys, time
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot

def once():
    with Quarantine() as quarantine:
        return sum(len(task) for task in RecordRoot(sys.argv[1]).read(quarantine))

records, passes = once(), []
while sum(passes) < float(sys.argv[2]):
    start = time.process_time()
    assert once() == records
    passes.append(time.process_time() - start)
print(json.dumps({"records": records, "pass_s": min(passes)}))
"""

DATASET = """
import json, resource, sys, tempfile, time
from pruner.data.root import RecordRoot
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.reading import ReadSpec

def cpu_s():
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)

root, found = RecordRoot(sys.argv[1]), {}
with tempfile.TemporaryDirectory() as cache:
    spec = ReadSpec(cache=cache, draft=len(sys.argv) > 3)
    for name in ("", "cached_"):
        start, start_s = time.perf_counter(), cpu_s()
        programs = load_programs(root, root.platforms, spec)
        found[name + "wall_s"] = time.perf_counter() - start
        found[name + "s" if name else "pass_s"] = cpu_s() - start_s
print(json.dumps({"records": programs.tally.counts["records"], **found}))
"""


def one_round(script: str, tree: Path, root: Path, *more: str) -> dict[str, Any]:
    """Records, and CPU seconds of the shortest pass of a process."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(root.resolve()), str(PASS_S), *more],
        cwd=tree, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print the last line."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--root", type=Path, default=HERE.parent / "datasets" / "ansor")
    options.add_argument("--before", default=BEFORE, help="the commit to compare with")
    options.add_argument("--rounds", type=int, default=15, help="processes of each commit")
    options.add_argument("--features", action="store_true", help="also featurise the records")
    options.add_argument("--draft", action="store_true", help="with the analyzer's columns")
    options.add_argument("--cores", type=int, default=1, help="cores that a pass may use")
    chosen = options.parse_args()
    script = DATASET if chosen.features else READ
    more = ["draft"] if chosen.draft else []
    cores = sorted(os.sched_getaffinity(0))[-chosen.cores :]
    os.sched_setaffinity(0, cores)  # inherited by the children
    rounds: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
    with tempfile.TemporaryDirectory() as folder:
        before = taken_out(chosen.before, Path(folder), "pruner", "conf")
        trees = {"before": before, "now": HERE.parent}
        for number in range(chosen.rounds):
            for name, tree in trees.items():
                rounds[name].append(one_round(script, tree, chosen.root, *more))
            least = {name: min(row["pass_s"] for row in rows) for name, rows in rounds.items()}
            print(f"{number + 1}/{chosen.rounds}: {least}", file=sys.stderr)
    records = {name: rows[0]["records"] for name, rows in rounds.items()}
    if records["now"] != records["before"]:
        raise SystemExit(f"not the same records: {records}")
    result = {
        "before": chosen.before,
        "records": records["now"],
        "us_per_record_before": round(1e6 * least["before"] / records["now"], 2),
        "us_per_record_now": round(1e6 * least["now"] / records["now"], 2),
        "slower": round(least["now"] / least["before"] - 1, 4),
    }
    name = chosen.root.resolve().name
    if chosen.features:
        name += " with features" + " and draft" * chosen.draft
        name += f", {len(cores)} cores" * (len(cores) > 1)
        result["records_per_second"] = round(records["now"] / least["now"])
        result["times_faster"] = round(least["before"] / least["now"], 2)
        for when, rows in rounds.items():
            result[f"seconds_{when}"] = round(least[when], 2)
            result[f"seconds_cached_{when}"] = round(min(row["cached_s"] for row in rows), 2)
            for key in ("wall_s", "cached_wall_s"):  # of every round: the spread
                result[f"{key}_{when}"] = [round(row[key], 2) for row in rows]
    kept = HERE / "results" / "reading.json"
    write_json(kept, {**earlier(kept), name: result}, indent=1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
