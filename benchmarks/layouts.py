"""Both layouts of a network on this CPU: what the draft estimates of them, and what they take.

    python benchmarks/layouts.py                     resnet18 and mobilenet_v2
    python benchmarks/layouts.py squeezenet1_1 dcgan

``layout=auto`` is a rule, channels last on CPUs; a choice by the draft's estimate would take the
layout with the smaller sum. A network is drafted and built twice, by ``tune.py effort=draft
layout=...``, which also times its library. ``estimate_s``: the analyzer's, of all calls of the
tasks that it drafted; ``latency_s``: the built network, a median; ``drafted_s``: wall seconds of
drafting. Estimates do not depend on what else the machine does, the rest wants it idle. The last
line is one JSON object, kept in ``results/layouts.json``; networks that are not named keep what it
has of them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from pruner.files import write_json  # noqa: E402
from pruner.models.checkpoint.checkpoint import git_commit  # noqa: E402
from pruner.tune.networks.catalog import NETWORKS  # noqa: E402
from pruner.tune.networks.rewrites.layout import Layout  # noqa: E402

KEPT = HERE / "results" / "layouts.json"
ASKED = ("resnet18", "mobilenet_v2")


def drafted(network: str, layout: str) -> dict[str, Any]:
    """A network as it is drafted and built in a layout."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, str(HERE.parent / "tune.py"), f"network={network}", "effort=draft",
            f"layout={layout}", f"outputs={folder}", "run_id=draft",
        ]  # fmt: skip
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    built = found["deployed"]
    return {
        "estimate_s": found["analyzer_estimate_s"],
        "latency_s": built["median_s"],
        "drafted": found["drafted"],
        "drafted_s": found["total_seconds"],
        "relative_error": built["relative_error"],
    }


def compared(layouts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The layouts, which one is the better by estimate and by the clock, and by how much."""
    first, second = get_args(Layout)
    told: dict[str, Any] = {"layouts": layouts}
    for name in ("estimate_s", "latency_s"):
        told[f"{name}_{first}_over_{second}"] = layouts[first][name] / layouts[second][name]
        told[f"better_by_{name}"] = min(layouts, key=lambda layout: layouts[layout][name])
    return told


def main() -> None:
    """Draft the networks that are named."""
    asked = sys.argv[1:] or ASKED
    if unknown := set(asked) - set(NETWORKS):
        raise SystemExit(f"nothing is called {min(unknown)}; there are {', '.join(NETWORKS)}")
    found = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    commit = git_commit()  # before the file of results changes
    for network in asked:
        layouts = {layout: drafted(network, layout) for layout in get_args(Layout)}
        found[network] = {"commit": commit, **compared(layouts)}
        print(network, found[network], file=sys.stderr, flush=True)
        write_json(KEPT, found, indent=1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
