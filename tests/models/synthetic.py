"""Made-up tasks whose latency really depends on their features."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from pruner.data.tasks import TaskKey
from pruner.features import DATAFLOW_COLUMNS, STATEMENT_COLUMNS, WORKLOAD_COLUMNS
from pruner.features.batch import ProgramFeatures, padded
from pruner.features.primitives import primitive_tokens
from pruner.models.analyzer.columns import NUM_DRAFT_COLUMNS, SCORE
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.program.te.skeleton import group_programs

exactly = partial(torch.testing.assert_close, rtol=0, atol=0)  # of two dictionaries, too


def key(name="t", platform="v100"):
    return TaskKey(platform=platform, task=name, workload_key='["x"]', target="cuda")


def steps(rng, speed):
    """Steps of one program: a tiled loop, now and then a shorter schedule; the tile knows speed."""
    tile = int(100 * 4**speed)
    unroll = ["PR", 1, 0, f"auto_unroll_max_step${rng.choice([0, 16, 64, 512])}"]
    if rng.random() < 0.25:
        return [["SP", 1, 0, 1024, [tile], 1], unroll]
    return [["SP", 1, 0, 1024, [tile, int(rng.integers(1, 9))], 1], ["AN", 1, 0, 5], unroll]


def features(rng, num_programs, *, max_statements=4, slots=10, invalid=0):
    counts = rng.integers(1, max_statements + 1, num_programs).astype(np.int32)
    width = len(STATEMENT_COLUMNS)
    statement = rng.uniform(0, 20, (num_programs, max_statements, width)).astype(np.float32)
    real = np.arange(max_statements) < counts[:, None]
    valid = np.ones(num_programs, bool)
    valid[:invalid] = False
    flow_shape = (num_programs, slots, len(DATAFLOW_COLUMNS))
    dataflow = rng.uniform(0, 30, flow_shape).astype(np.float32)
    flags = rng.integers(0, 2, len(WORKLOAD_COLUMNS)).astype(np.float32)
    made = ProgramFeatures(
        statement=statement[real],
        row_start=np.concatenate([[0], counts.cumsum()]),
        dataflow=dataflow,
        workload=flags,
        valid=valid,
    )
    speed = speed_of(made)
    schedules = [steps(rng, one) for one in speed]
    made = replace(made, tokens=primitive_tokens(group_programs(schedules)[0], num_programs))
    # by a generator of its own: other draws stay what they were; right but for some noise
    noise = np.random.default_rng(num_programs)
    extra = noise.normal(size=(num_programs, NUM_DRAFT_COLUMNS)).astype(np.float32)
    extra[:, SCORE] = speed + 0.1 * extra[:, SCORE]
    return replace(made, extra=extra)


def speed_of(batch):
    """What a model can learn: grows with column 3 of statements and 7 of dataflow."""
    statement = padded(batch.statement, batch.row_start, batch.num_statements.max(initial=0))
    return statement[..., 3].sum(axis=1) / 20 + batch.dataflow[..., 7].mean(axis=1) / 30


def latency_of(batch):
    return 1e-4 * np.exp(-speed_of(batch))


def task(rng, name="t0", num_programs=12, *, platform="v100", **kwargs):
    batch = features(rng, num_programs, **kwargs)
    return TaskPrograms.of(key(name, platform), batch, latency_of(batch), np.arange(num_programs))


def store(seed=0, sizes=(12, 9, 15), *, platform="v100", **kwargs):
    rng = np.random.default_rng(seed)
    return ProgramTable.build(
        task(rng, f"t{i}", size, platform=platform, **kwargs) for i, size in enumerate(sizes)
    )
