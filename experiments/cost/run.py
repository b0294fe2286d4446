"""Measure a model's cost: memory, speed, and time of equal trials.

    python -m experiments.cost.run data.root=DIR [models=[pacm,tlp]]

Every model scores 4,096 recorded programs of V100 and learns from 512 programs, each in a process
of its own with one thread. The memory is the growth of the largest resident memory. The speed is
from the CPU time of the fastest of several repeats, on which other work has little effect.
`live.csv` has the seconds of live runs with equal trials (ours, Ansor, MetaSchedule), from the
committed runs of experiments/tune. Output: results.csv and live.csv here, or in out=DIR. The script
needs Linux.
"""

import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from pruner.cli.shared.script import Data, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError, check_chosen
from pruner.features.dataflow import DataflowKind, kind_of
from pruner.files import merged_table, read_table, write_table
from pruner.models.adaptation.fitting import adam
from pruner.models.model import RankingNetwork
from pruner.models.networks.hardware_attention import HardwareAttention
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.networks.tlp import TLP
from pruner.models.programs.batch import LabelledBatch
from pruner.models.programs.dataset import RecordReader
from pruner.models.programs.program_table import ProgramTable
from pruner.models.programs.reading import ReadSpec
from pruner.models.registry import ModelFactory
from pruner.models.training.losses import LambdaRank
from pruner.models.training.training import build_network
from pruner.processes import Worker

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS: dict[str, ModelFactory] = {
    "pacm": PaCM,
    "pacm_official": partial(PaCM, num_dataflow_rows=8),
    "tensetmlp": TenSetMLP,
    "tlp": TLP,
    "attention": HardwareAttention,
}
SCORED, LEARNED = 4096, 512  # the release's batches of inference and of training
REPEATS = 5
JOBS = "experiments.cost.run"
PLATFORM = "v100"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    models: list[str] = field(default_factory=lambda: list(MODELS))
    out: str = str(HERE)


def read_some(root: RecordRoot, rows: DataflowKind) -> ProgramTable:
    """`SCORED` programs of the platform's first tasks."""
    reader = RecordReader(root, ReadSpec(dataflow=rows, cache=ROOT / "outputs" / "cache"))
    with Quarantine() as quarantine:
        store = ProgramTable.build(reader.tasks([PLATFORM], quarantine))
    return store.subset(torch.arange(SCORED))


def resident_kb(name: str) -> int:
    """A line of this process's status, in kibibytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def cost_of(work: Callable[[], object]) -> tuple[float, float]:
    """Growth of the largest resident memory (MiB), and CPU seconds of the quickest repeat."""
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts anew
    before, found = resident_kb("VmRSS"), []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return (resident_kb("VmHWM") - before) / 1024, min(found)


def rows_of(name: str) -> DataflowKind:
    """The dataflow rows that a model reads."""
    return kind_of(build_network(MODELS[name], 0).num_dataflow_rows)


def scoring(network: RankingNetwork, batch: LabelledBatch) -> Callable[[], object]:
    """Scores of a batch."""
    network.eval()

    def score() -> None:
        with torch.no_grad():
            network(batch.programs)

    return score


def learning(network: RankingNetwork, batch: LabelledBatch) -> Callable[[], object]:
    """A step of training."""
    optimizer, loss = adam()(network.parameters()), LambdaRank(lists="batch")
    network.train()

    def learn() -> None:
        optimizer.zero_grad()
        loss(network(batch.programs), batch.label, batch.task).backward()
        optimizer.step()

    return learn


# In a process each: what one has freed would be taken again by the other, and not count.
WORKS = {"scoring": (scoring, SCORED, "scored"), "learning": (learning, LEARNED, "learned")}


def measured(name: str, path: Path, work: str) -> dict:
    """Memory and speed of a model at one kind of work, in this process."""
    torch.set_num_threads(1)
    network = build_network(MODELS[name], 0)
    store: ProgramTable = pickle.loads(path.read_bytes())  # written by the process that started us
    make, count, done = WORKS[work]
    mb, seconds = cost_of(make(network, store.batch(torch.arange(count))))
    return {f"{work}_mb": mb, f"{done}_per_second": count / seconds}


def weights(name: str) -> dict:
    """Size of a model."""
    network = build_network(MODELS[name], 0)
    parameters = sum(value.numel() for value in network.parameters())
    return {"model": name, "parameters": parameters, "weights_mb": parameters * 4 / 2**20}


def live_rows() -> list[dict]:
    """Seconds of equal trials over a rival's, operator by operator."""
    rows = read_table(ROOT / "experiments" / "tune" / "summary.csv")
    total_s = {(row["operator"], row["policy"]): float(row["total_s"]) for row in rows}
    return [
        {
            "operator": operator,
            "rival": rival,
            "live_cost_share": total_s[operator, "ours"] / seconds,
        }
        for (operator, rival), seconds in total_s.items()
        if rival != "ours"
    ]


def alone(name: str, path: Path, work: str) -> dict:
    """Measure in a process of its own; raises PrunerError where it failed."""
    with Worker(JOBS, method="spawn") as worker:
        reply = worker.call("measured", name, path, work)
    if reply.error is not None:
        raise PrunerError(f"models=[{name}]: {work}: {reply.line}")
    found: dict = reply.value
    return found


def run(options: Options) -> dict:
    """Measure every model in processes of its own."""
    check_chosen("models", options.models, MODELS)
    out, rows = Path(options.out), []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = Path(folder) / rows_of(name)
            if not path.is_file():
                store = read_some(RecordRoot(options.data.root), rows_of(name))
                path.write_bytes(pickle.dumps(store))
            row = weights(name)
            for work in WORKS:
                row |= alone(name, path, work)
            rows.append(row)
    write_table(out / "results.csv", merged_table(out / "results.csv", rows, ("model",)), ".6g")
    write_table(out / "live.csv", live_rows(), ".6g")
    return {"models": len(rows), "out": str(out)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
