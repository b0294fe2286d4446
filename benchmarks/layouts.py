"""Compare both layouts of a network: draft's estimate, and measured latency.

    python benchmarks/layouts.py                     resnet18 and mobilenet_v2
    python benchmarks/layouts.py squeezenet1_1 dcgan
    python benchmarks/layouts.py platform=a100 precision=float16 deploy=false     no device needed

``layout=auto`` is a fixed rule. A choice by the draft would take the layout with the smaller
estimate. For each layout, ``tune.py effort=draft layout=...`` drafts and builds the network and
times its library; the other words of the command line are passed on.

* ``estimate_s``: the analyzer's estimate, summed over all calls of the drafted tasks (``drafted``
  counts the other tasks);
* ``latency_s``: the median latency of the library; null without a library;
* ``drafted_s``, ``total_s``: wall-clock seconds of drafting, and of the command.

The estimates do not depend on the load of the machine; the other numbers need an idle machine. The
last line is one JSON object. It is also in ``results/layouts.json``, where cases that are not named
stay.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from common import earlier

from pruner.files import write_json
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.rewrites.layout import Layout

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results" / "layouts.json"
ASKED = ("resnet18", "mobilenet_v2")


def drafted(network: str, layout: str, given: Sequence[str]) -> dict[str, Any]:
    """A network as it is drafted and built in a layout."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, str(HERE.parent / "tune.py"), f"network={network}", "effort=draft",
            f"layout={layout}", f"outputs={folder}", "run_id=draft", *given,
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    built = found.get("deployed", {})
    return {
        "estimate_s": found["analyzer_estimate_s"],
        "latency_s": built.get("median_s"),
        "relative_error": built.get("relative_error"),
        "drafted": found["drafted"],
        "drafted_s": found["total_seconds"],
        "total_s": time.perf_counter() - start,
    }


def compared(layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The layouts, the better by estimate and by latency, and ratios."""
    first, second = get_args(Layout)
    told: dict[str, Any] = {"layouts": layouts}
    for name in ("estimate_s", "latency_s"):
        if all(layout[name] is not None for layout in layouts.values()):
            told[f"{name}_{first}_over_{second}"] = layouts[first][name] / layouts[second][name]
            told[f"better_by_{name}"] = min(layouts, key=lambda layout: layouts[layout][name])
    return told


def main() -> None:
    """Draft the networks that are named."""
    given = [word for word in sys.argv[1:] if "=" in word]
    asked = [word for word in sys.argv[1:] if word not in given] or ASKED
    if unknown := set(asked) - set(NETWORKS):
        raise SystemExit(f"nothing is called {min(unknown)}; there are {', '.join(NETWORKS)}")
    found = earlier(KEPT)
    commit = git_commit()  # before the file of results changes
    for network in asked:
        case = " ".join([network, *given])
        layouts = {layout: drafted(network, layout, given) for layout in get_args(Layout)}
        found[case] = {"commit": commit, **compared(layouts)}
        print(case, found[case], file=sys.stderr, flush=True)
        write_json(KEPT, found, indent=1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
