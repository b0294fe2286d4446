"""Which share of a network's design spaces, tasks and arithmetic the batched engine takes.

For each network and target: the tasks as `tune.py network=` finds them, MetaSchedule's design
spaces of every task, and whether each is batched; a task is where all its spaces are. One random
program of every space goes through the engine, features included. Nothing is built or run, no GPU
is needed. Networks of equal layers have two of them: the others are the same tasks.

    python benchmarks/coverage.py [network ...] [targets=a100,h100,orin,cpu-avx512] [tasks=FOLDER]

The table is ``benchmarks/results/coverage.csv``; rows of other networks and targets stay in it. The
tasks are kept in FOLDER, so that they are imported once. The last line is a JSON object.
"""

import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.program.device import load_device
from pruner.tune.measure.machine import make_platform
from pruner.tune.networks.catalog import NETWORKS
from pruner.tune.networks.coverage import refusals
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks
from pruner.tune.networks.sizes import NetworkOptions
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.tasks import NetworkTask

CONF = Path(__file__).resolve().parents[1] / "conf"
TABLE = Path(__file__).resolve().parent / "results" / "coverage.csv"
TARGETS = ("a100", "h100", "orin", "cpu-avx512")
LAYERS = dict.fromkeys(("vit_b_16", "bert_tiny", "bert_base", "gpt2", "opt", "llama", "mistral"), 2)
COLUMNS = (
    "network", "target", "tasks", "tasks_batched", "spaces", "spaces_batched", "flops_batched",
    "reasons",
)  # fmt: skip


@dataclass(slots=True)
class Coverage:
    """Counts of one network on one target; ``reasons`` of refused spaces."""

    tasks: int = 0
    tasks_batched: int = 0
    spaces: int = 0
    flops: float = 0.0
    flops_batched: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, task: NetworkTask, reasons: list[str | None]) -> None:
        """Count a task with what refused each of its spaces, None where nothing did."""
        whole = all(reason is None for reason in reasons)
        flops = task.weight * task.flops
        self.tasks += 1
        self.tasks_batched += whole
        self.spaces += len(reasons)
        self.flops += flops
        self.flops_batched += flops * whole
        self.reasons.update(reason for reason in reasons if reason is not None)

    def row(self, network: str, target: str) -> dict[str, Any]:
        """One line of the table."""
        refused = self.reasons.total()
        share = self.flops_batched / self.flops if self.flops else 1.0
        reasons = "; ".join(f"{reason} {n}" for reason, n in self.reasons.most_common())
        counts = (self.tasks, self.tasks_batched, self.spaces, self.spaces - refused)
        values = (network, target, *counts, f"{share:.4f}", reasons)
        return dict(zip(COLUMNS, values, strict=True))


def tasks_of(network: str, target: Any, folder: Path) -> list[NetworkTask]:
    """Tasks of a network for a kind of target, imported where ``folder`` does not have them.

    Raises:
        PrunerError: the network cannot be imported.
    """
    here = folder / str(target.kind.name) / network
    if (here / TASKS).is_file():
        return read_tasks(here / TASKS)
    options = NetworkOptions(layers=LAYERS.get(network))
    described = json.dumps(target.export())
    return extract_tasks(NetworkSource(name=network, options=options), described, here)


def cover(tasks: Iterable[NetworkTask], target: Any) -> Coverage:
    """Try every space of every task on a target."""
    found = Coverage()
    for task in tasks:
        refused = refusals(task, target)
        found.add(task, [None if error is None else error.reason for error in refused])
    return found


def keep(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table with new rows in place of those of the same network and target."""
    old: list[dict[str, Any]] = []
    if TABLE.is_file():
        with TABLE.open(encoding="utf-8", newline="") as file:
            old = list(csv.DictReader(file))
    table = {(row["network"], row["target"]): row for row in [*old, *rows]}
    order = {name: place for place, name in enumerate([*NETWORKS, *TARGETS])}
    kept = sorted(table.values(), key=lambda r: (order[r["network"]], order[r["target"]]))
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    return kept


def main() -> None:
    """Cover the networks that are named, or all."""
    options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
    names = [a for a in sys.argv[1:] if "=" not in a] or list(NETWORKS)
    folder = Path(options.get("tasks", "outputs/coverage"))
    kept: list[dict[str, Any]] = []
    for network in names:
        for name in options.get("targets", ",".join(TARGETS)).split(","):
            start = time.process_time()
            target = make_platform(load_device(CONF / "platform" / f"{name}.yaml")).target
            try:
                found = cover(tasks_of(network, target, folder), target)
            except PrunerError as error:
                print(f"{network} {name}: {error}", file=sys.stderr)
                continue
            kept = keep([found.row(network, name)])
            seconds = time.process_time() - start
            print(f"{seconds:.1f} s {found.row(network, name)}", file=sys.stderr, flush=True)
    spaces = sum(int(row["spaces"]) for row in kept)
    batched = sum(int(row["spaces_batched"]) for row in kept)
    lowest = min((float(row["flops_batched"]) for row in kept), default=1.0)
    line = {"rows": len(kept), "spaces": spaces, "batched": batched, "least_flops": lowest}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
