"""Time how long a user waits: for an error, a library, a comparison, the demonstration.

    python benchmarks/first_result.py [network=resnet18 rounds=3] [before=COMMIT] [demo=true]
    python benchmarks/first_result.py 'target={kind:llvm,mcpu:haswell,num-cores:2}'

Every command runs in a process of its own, in an empty folder: its help, a wrong option, the draft
of a network up to its library, the same command again, and the comparison with baselines. With
``demo=true`` also the two trainings of ``make demo``. With ``before=`` the commands of an earlier
commit take turns with those of this tree; some need ``target=``, where a virtual machine hides
vector instructions. Each row has the wall-clock seconds and the CPU seconds
of all processes, by round. A command that the earlier commit lacks is left out. The last line is
one JSON object, which ``results/first_result.json`` keeps.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import taken_out

from pruner.files import write_json

HERE = Path(__file__).resolve().parent
WRONG, REFUSED = "wrong option", 2  # a row, and its exit code
DEFAULTS = {"network": "resnet18", "rounds": "3", "before": "", "demo": "false", "target": ""}


def commands(network: str, target: str, *, demo: bool) -> dict[str, list[list[str]]]:
    """The command lines of each row, run one after another."""
    draft = [
        "tune.py",
        f"network={network}",
        "effort=draft",
        *([f"target={target}"] if target else []),
    ]
    bundled = ["train.py", "data.platform=all", "split=bundled"]
    seeds = ["seeds=[0,1,2]", "num_workers=2"]
    found = {
        "help": [["tune.py", "--help"]],
        WRONG: [["tune.py", "effort=dra"]],
        "draft to library": [[*draft, "run_id=first"]],
        "the same again": [[*draft, "run_id=second"]],
        "deploy with its table": [["-m", "pruner.cli", "deploy", "run=outputs/tune/first"]],
    }
    if demo:
        models = ("pacm_residual", "xgboost")
        found["demo"] = [[*bundled, *seeds, f"model={name}"] for name in models]
    return found


def children_s() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(tree: Path, folder: Path, words: list[list[str]], code: int) -> dict[str, float]:
    """Run command lines of a tree in a folder; return wall-clock and CPU seconds.

    Raises `RuntimeError`: a command ends with another exit code.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    start, before_s = time.perf_counter(), children_s()
    for line in words:
        script = [str(tree / line[0])] if line[0].endswith(".py") else [line[0]]
        command = [sys.executable, *script, *line[1:]]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return {"wall_s": time.perf_counter() - start, "cpu_s": children_s() - before_s}


def main() -> None:
    """Measure, print the last line."""
    given = DEFAULTS | dict(word.split("=", 1) for word in sys.argv[1:])
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as place:
        trees = {"now": HERE.parent}
        if given["before"]:
            trees = {"before": taken_out(given["before"], Path(place) / "before")} | trees
        wanted = commands(given["network"], given["target"], demo=given["demo"] == "true")
        for number in range(int(given["rounds"])):
            for name, tree in trees.items():
                folder = Path(place) / "work"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                for row, lines in wanted.items():
                    # earlier commits lack this option
                    left_out = {"num_workers=2"} if name == "before" else set()
                    words = [[word for word in line if word not in left_out] for line in lines]
                    try:
                        found = timed(tree, folder, words, REFUSED if row == WRONG else 0)
                    except RuntimeError as error:
                        if name == "now":
                            raise
                        print(f"{row}: left out, {error}", file=sys.stderr)
                        continue
                    print(f"{number + 1}: {name}, {row}: {found}", file=sys.stderr)
                    kept = rows.setdefault(row, {}).setdefault(name, {})
                    for key, seconds in found.items():
                        kept.setdefault(key, []).append(round(seconds, 2))
    result = {
        "network": given["network"],
        "before": given["before"] or None,
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load": list(os.getloadavg()),
        "rows": rows,
        "median_wall_s": {
            row: {name: statistics.median(one["wall_s"]) for name, one in of.items()}
            for row, of in rows.items()
        },
    }
    (HERE / "results").mkdir(exist_ok=True)
    write_json(HERE / "results" / "first_result.json", result, indent=1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
