"""Faults at the writes that the loop's walk (`test_faults`) leaves out: configuration, references,
results, kernels and checkpoints of a tuning run, and every file of a training.

Bounded: of a tuning run only the events of those files fail, so some dozens of a run whose every
other write is walked there; ``FAULTS=`` takes fewer, evenly. What builds and measures is made up.
"""

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pruner.files import METRICS_FILE, load_metrics, save_metrics
from tests.attack.faults import DIED, FULL, PRELOADED, Fault, forked_from, spread, started
from tests.attack.sizes import FAULTS
from tests.tune.run.test_loop import SIZES, FakeMeasurer, made_model, measured

pytestmark = [pytest.mark.tvm, pytest.mark.slow]

OF_THE_LOOP = ("trials.jsonl", "database_", "state.npz", ".lock", "fsync folder")
MOST = 40  # faults of a kind in one walk, evenly, where FAULTS does not say
TRIALS, EPOCHS = 8, 2
OF_FITS = ("pruner.tune.run.tuning", "pruner.models.training.fit")


class StandIn(FakeMeasurer):
    """A measurer whose references and kernels are files, and say what they were made from."""

    def __init__(self, platform: Any, settings: Any, phases: Any, folder: Path) -> None:
        super().__init__()

    def __enter__(self) -> "StandIn":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin_reference(self, module: Any, arguments: Any, path: Path) -> Future[str | None]:
        from pruner.tune.measure.numerics import save_reference

        save_reference(path, {"signed": [np.arange(4.0)]})
        done: Future[str | None] = Future()
        done.set_result(None)
        return done

    def results(self, batch: Any, accept: Any, check: Any, stopped: Any) -> Any:
        from pruner.tune.measure.numerics import load_reference

        assert load_reference(check)["signed"][0].tolist() == [0, 1, 2, 3]
        for position, outcome in super().results(batch, accept, check, stopped):
            yield position, replace(outcome, checked=outcome.error is None)

    def export(self, module: Any, path: Path) -> None:
        text = module.script()
        for mode, piece in (("w", text[:100]), ("a", text[100:])):
            with path.open(mode) as file:
                file.write(piece)


def tuned(folder: Path, _: Fault) -> None:
    from omegaconf import OmegaConf

    from pruner.cli.shared.runs import CONFIG_FILE, read_config, save_config
    from pruner.models.analyzer.analyzer import load_analyzer
    from pruner.search.explorer import ExplorerSettings
    from pruner.search.policy import RoundSettings
    from pruner.tune import workloads
    from pruner.tune.measure.measurer import MeasureSettings, Platform
    from pruner.tune.run import tuning
    from pruner.tune.run.budget import TuneBudget
    from pruner.tune.run.tune_options import TuneOptions
    from pruner.tune.tvm_import import load_tvm
    from tests.paths import CONF

    if (folder / CONFIG_FILE).is_file():
        assert read_config(folder / CONFIG_FILE).seed == 3
    else:
        save_config(folder, OmegaConf.create({"seed": 3}))
    target = load_tvm().tvm.target.Target({"kind": "llvm", "num-cores": 1})
    small = ExplorerSettings(population=48, generations=1, keep=32)
    options = TuneOptions(
        platform=Platform(target=target, device="cpu", cores=1, name="cpu-avx2"),
        budget=TuneBudget(trials=TRIALS, batch=4),
        measure=MeasureSettings(baseline=False),
        policy=RoundSettings(draft=small, verify=small, random_sample=32, prior=0.0),
        analyzer=load_analyzer(CONF, "cpu-avx2"),
        make_model=partial(made_model, "trees"),
        seed=3,
    )
    tuning.Measurer = StandIn  # type: ignore[misc, assignment]
    found = tuning.tune(workloads.from_operator(SIZES), options, folder)
    save_metrics(folder, found.metrics())


def tuned_files(folder: Path) -> dict[str, Any]:
    """What a run left, as far as it is the same every time."""
    from pruner.cli.shared.runs import CONFIG_FILE, read_config
    from pruner.models.checkpoint.checkpoint import load_checkpoint
    from pruner.tune.measure.numerics import load_reference

    told = load_metrics(folder) or {}
    (reference,) = folder.glob("reference-*.npz")
    (kernel,) = (folder / "kernels").iterdir()
    models = sorted((folder / "models").glob("*.safetensors"))
    assert all(load_checkpoint(path) for path in models)
    return {
        "config": read_config(folder / CONFIG_FILE),
        METRICS_FILE: [told.get(name) for name in ("best_latency_s", "trials", "checked")],
        "reference": load_reference(str(reference))["signed"][0].tolist(),
        "kernel": kernel.read_text(),
        "models": [path.name for path in models],
        "rows": measured(folder),
    }


def learnt(folder: Path, _: Fault) -> None:
    import torch

    from pruner.data.splits import TaskSplit
    from pruner.models.networks.pacm import PaCM
    from pruner.models.training.fit import fit
    from pruner.models.training.recipe import Recipe
    from pruner.models.training.sampler import TaskBatches
    from tests.models import synthetic

    store = synthetic.store(sizes=(12, 9, 10))
    keys = store.keys
    recipe = Recipe(
        model=partial(PaCM, width=16, dataflow_hidden=8, dataflow_width=8),
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        batches=TaskBatches(tasks=2, programs=8),
        trainer={"accelerator": "cpu"},
        epochs=EPOCHS,
    )
    split = TaskSplit(name="x", seed=0, train=keys[:2], valid=keys[2:], test=keys[2:])
    assert fit(recipe, store, split, folder=folder).finished


def learnt_files(folder: Path) -> dict[str, Any]:
    from pruner.models.checkpoint.checkpoint import BEST, load_checkpoint
    from pruner.models.checkpoint.tensors import load_content
    from pruner.models.training.training import LAST

    ranker, _ = load_checkpoint(folder / BEST)
    states = load_content(folder / LAST)["state_dict"], ranker.state_dict()
    return {
        name: [v.tolist() for v in s.values()] for name, s in zip((LAST, BEST), states, strict=True)
    }


def chosen(events: list[str]) -> list[int]:
    """Which of them fail, counted from 1: no more than a walk has time for."""
    of_others = [
        number
        for number, event in enumerate(events, start=1)
        if not any(word in event for word in OF_THE_LOOP)
    ]
    return spread(of_others, FAULTS or MOST)


@pytest.mark.parametrize("kind", ["killed", "full"])
@pytest.mark.parametrize(("job", "files"), [(tuned, tuned_files), (learnt, learnt_files)])
def test_files_beside_the_loop_are_whole(job, files, kind, tmp_path, record_property, log):
    with forked_from([__name__, *PRELOADED, *OF_FITS]):
        walk(job, files, kind, tmp_path, record_property, log)


def walk(job, files, kind, tmp_path, record_property, log):
    whole, out = tmp_path / "whole", tmp_path / "events"
    assert started(job, whole, None, kind, out) == 0
    events, expected = out.read_text().splitlines(), files(whole)
    walked, wrong = chosen(events), dict[str, str]()
    assert len(walked) >= min(FAULTS or MOST, 10)
    for done, at in enumerate(walked, start=1):
        event, folder = f"{at} {events[at - 1]}", tmp_path / f"{kind}-{at}"
        endings = [started(job, folder, number, kind, out) for number in (at, None)]
        if endings != [DIED if kind == "killed" else FULL, 0]:
            wrong[event] = f"endings {endings}"
        elif files(folder) != expected:
            wrong[event] = "other files than of the whole run"
        elif parts := [path.name for path in folder.rglob(".*.part")]:
            wrong[event] = f"left {parts}"
        record_property("tried", done)
        record_property("failed", len(wrong))
        if done % 10 == 0:
            log(f"{done} of {len(walked)} writes, {len(wrong)} wrong")
    assert not wrong
