"""A source task and a target task that agree in part: what adaptation is for."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from pruner.models.adaptation.base import Setting
from pruner.models.adaptation.fitting import Example, OnlineFit
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.ranker import NeuralRanker
from pruner.models.training.sampler import TaskBatches
from pruner.models.training.training import build_network
from tests.models import synthetic
from tests.paths import CONF

FILES = CONF / "adaptation"
METHODS = sorted(path.stem for path in FILES.glob("*.yaml"))
NETWORKS = {
    "pacm": partial(PaCM, num_dataflow_rows=2, width=24, dataflow_hidden=8, dataflow_width=8),
    "tensetmlp": partial(TenSetMLP, width=24),
}


def store(seed, columns, *, platform, tasks=3, programs=30):
    """Tasks of one-statement programs; latency falls with the given columns of the first twelve."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(tasks):
        batch = synthetic.features(rng, programs, max_statements=1, slots=2)
        batch.statement[:, 12:] = 0
        speed = batch.statement[:, columns].sum(axis=1) / 5
        key = synthetic.key(f"t{number}", platform)
        parts.append(TaskPrograms.of(key, batch, 1e-4 * np.exp(-speed), np.arange(programs)))
    return ProgramTable.build(parts)


def source_and_target(network="pacm", relative=True):
    """(source model, source programs, target programs, other programs of the target)."""
    source = store(1, [3, 7], platform="old")
    seen = source.relative() if relative else source
    everything = torch.arange(source.num_programs)
    scaler = seen.fit_scaler(everything, "standard" if relative else "max")
    ranker = NeuralRanker(build_network(NETWORKS[network], 0), scaler, relative=relative)
    fit = OnlineFit(epochs=60, max_steps=60, batches=TaskBatches(tasks=3, programs=30))
    fit(ranker.network, Example.of(source, ranker, everything), seed=0)
    target = store(2, [3, 11], platform="new")
    return SimpleNamespace(
        ranker=ranker, store=source, target=target, others=store(3, [3, 11], platform="new")
    )


def adaptation(method, world, network="pacm", *, seed=0, steps=4):
    """A method as its configuration file has it, but with short fits at a higher rate."""
    setting = Setting(
        make_network=NETWORKS[network],
        source=world.ranker,
        source_store=world.store,
        seed=seed,
    )
    fit = {"fit": short_fit(steps)} if method != "none" else {}
    return instantiate(OmegaConf.load(FILES / f"{method}.yaml"), setting=setting, **fit)


def short_fit(steps=4):
    return OnlineFit(
        epochs=steps,
        max_steps=steps,
        batches=TaskBatches(tasks=3, programs=30),
        optimizer=partial(torch.optim.Adam, lr=3e-3),
    )


def scores(adapted, programs):
    scored = adapted.ranker.score_tasks(programs, torch.arange(programs.num_programs))
    return np.concatenate([task.score for task in scored])
