"""Made-up tasks whose latency really depends on their features."""

from types import SimpleNamespace

import numpy as np

from pruner.data.tasks import TaskKey
from pruner.models.store import ProgramStore, TaskPrograms


def key(name="t", platform="toy"):
    return TaskKey(platform=platform, task=name, workload_key='["x"]', target="cuda")


def features(rng, num_programs, *, max_statements=4, slots=10, invalid=0):
    """Random features in the shape `pruner.features` returns, zero padded."""
    counts = rng.integers(1, max_statements + 1, num_programs).astype(np.int32)
    statement = rng.uniform(0, 20, (num_programs, max_statements, 164)).astype(np.float32)
    statement[np.arange(max_statements) >= counts[:, None]] = 0
    valid = np.ones(num_programs, bool)
    valid[:invalid] = False
    return SimpleNamespace(
        statement=statement,
        num_statements=counts,
        dataflow=rng.uniform(0, 30, (num_programs, slots, 23)).astype(np.float32),
        valid=valid,
        workload_flags=rng.integers(0, 2, 10).astype(np.float32),
    )


def latency_of(batch):
    """A latency that a model can learn: falls with column 3 of statements and 7 of dataflow."""
    speed = batch.statement[..., 3].sum(axis=1) / 20 + batch.dataflow[..., 7].mean(axis=1) / 30
    return 1e-4 * np.exp(-speed)


def task(rng, name="t0", num_programs=12, *, platform="toy", **kwargs):
    batch = features(rng, num_programs, **kwargs)
    return TaskPrograms.of(key(name, platform), batch, latency_of(batch), np.arange(num_programs))


def store(seed=0, sizes=(12, 9, 15), *, platform="toy", **kwargs):
    rng = np.random.default_rng(seed)
    return ProgramStore.build(
        task(rng, f"t{i}", size, platform=platform, **kwargs) for i, size in enumerate(sizes)
    )
