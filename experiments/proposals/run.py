"""Train the language model of ``policy=propose_lm``, and judge its proposals on unseen tasks.

    python -m experiments.proposals.run [more=[DIR]]

The model learns from the training sides of the three bundled record sets, and from the tasks of
`more` (data roots with design spaces) whose loops have other extents than every validation and test
task. Each seed is a fit; the seed with the lowest loss on the validation tasks is stored in
``checkpoints/proposals/``. The judged tasks are the test sides of the frozen splits. Each pool is
ranked by the likelihood ratio, no program is looked up by similarity; `lm` measures the first k
programs of this order, `draft` the first k by the analyzer, `random` is exact chance.
`draft_of_random` and `draft_of_lm` are the analyzer's first k of 32 programs that are drawn at
random or by the model: the first population of the draft. Finished fits (under work=) are not
repeated. Output: results.csv, summary.csv,
legal.csv and fits.csv in out=.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.proposals.fit import ProposalRecipe, fit_proposals, mean_loss
from experiments.proposals.pools import Shape, TokenPool, legal_shares, read_pools
from pruner.cli.shared.output import say
from pruner.cli.shared.script import run_script
from pruner.data.frozen import BUNDLED, FrozenSplit, Side
from pruner.data.root import RecordRoot
from pruner.errors import PrunerError
from pruner.files import write_checksums, write_table
from pruner.models.judging.judge import expected_ratio
from pruner.models.judging.metrics import ScoredTask
from pruner.models.proposals.proposal_model import ProposalModel, bundled_weights
from pruner.search.offline.adaptation_run import bootstrap_interval
from pruner.search.offline.recorded_run import RecordedSpace
from pruner.search.propose_lm import Proposer
from pruner.study.grid import Job, results

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SIZES = (1, 8, 64)
POPULATION, DRAWS = 32, 20  # of the first population of the draft, and how often it is drawn
WEIGHTS = "weights.safetensors"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    more: list[str] = field(default_factory=list)
    epochs: int = 20
    store: bool = True
    work: str = str(ROOT / "outputs" / "proposals")
    out: str = str(HERE)


@dataclass(frozen=True, kw_only=True)
class Ground:
    """All pools by side of their split; read once they are needed."""

    more: Sequence[str]

    @cached_property
    def sides(self) -> dict[Side, list[TokenPool]]:
        """The pools of each side."""
        out: dict[Side, list[TokenPool]] = {"train": [], "valid": [], "test": []}
        for one in BUNDLED.values():
            split = FrozenSplit.load(one.name, 0)
            assert split is not None
            for pool in _all(one.folder):
                out[split.sides[pool.key.identity]].append(pool)
        held: set[Shape] = {pool.shape for side in ("valid", "test") for pool in out[side]}
        extra = [pool for folder in self.more for pool in _all(Path(folder))]
        out["train"] += [pool for pool in extra if pool.shape not in held]
        for side, pools in out.items():
            say(f"{side}: {len(pools)} tasks, {sum(map(len, pools))} programs")
        return out


def _all(folder: Path) -> Iterator[TokenPool]:
    root = RecordRoot(folder)
    for platform in root.platforms:
        say(f"reading {folder.name} {platform}")
        yield from read_pools(root, platform)


def fit(ground: Ground, recipe: ProposalRecipe, seed: int, folder: Path) -> dict[str, Any]:
    """Train with a seed; returns the losses and the counts of the records."""
    train, valid = ([pool.task for pool in ground.sides[side]] for side in ("train", "valid"))
    model = fit_proposals(train, valid, recipe, seed=seed, log=say)
    platforms = [pool.key.platform for pool in ground.sides["train"]]
    about = {
        "seed": seed,
        "tasks": {name: platforms.count(name) for name in sorted(set(platforms))},
        "programs": sum(map(len, ground.sides["train"])),
        "recipe": asdict(recipe),
    }
    replace(model, about=about).save(folder / WEIGHTS)
    kept = ProposalModel.load(folder / WEIGHTS)  # judged as stored, in float16
    return {
        "seed": seed,
        "valid_loss": mean_loss(kept.network, valid, recipe),
        "train_loss": mean_loss(kept.network, train, recipe),
        "train_tasks": len(train),
        "train_programs": about["programs"],
        "parameters": sum(one.numel() for one in model.network.parameters()),
        "bytes": (folder / WEIGHTS).stat().st_size,
    }


def judge(ground: Ground, seed: int, folder: Path) -> dict[str, Any]:
    """Rows of the test tasks: best latency of the pool over the best of k programs."""
    model = ProposalModel.load(folder / WEIGHTS)
    rng = np.random.default_rng(seed)
    rows, legal = [], []
    for pool in ground.sides["test"]:
        about = {"seed": seed, "platform": pool.key.platform, "task": pool.key.task}
        for method, k, ratio in judged_pool(pool, model, rng):
            rows.append({**about, "method": method, "k": k, "ratio": ratio})
        legal += [{**about, **row} for row in legal_shares(pool, model, rng)]
    return {"rows": rows, "legal": legal}


def judged_pool(
    pool: TokenPool, model: ProposalModel, rng: np.random.Generator
) -> Iterator[tuple[str, int, float]]:
    """Yield method, k, and best of the pool / best of k."""
    space = RecordedSpace(pool.decisions, pool.spaces)
    ratio = Proposer(space, model).log_ratio(pool.decisions)
    draft = np.where(np.isfinite(pool.draft), pool.draft, -np.inf)
    best, weights = pool.latency_s.min(), np.exp(ratio - ratio.max())
    chances = {"random": None, "lm": weights / weights.sum()}
    task = ScoredTask(name=pool.key.task, latency_s=pool.latency_s, score=ratio)

    def best_of(order: np.ndarray, k: int) -> float:
        return float(best / pool.latency_s[order[:k]].min())

    for k in (k for k in SIZES if k < len(pool)):
        yield "random", k, expected_ratio(task, k)
        yield "lm", k, best_of(np.argsort(-ratio, kind="stable"), k)
        yield "draft", k, best_of(np.argsort(-draft, kind="stable"), k)
        if k < POPULATION:
            for name, chance in chances.items():
                found = []
                for _ in range(DRAWS):
                    drawn = np.unique(rng.choice(len(pool), POPULATION, p=chance))
                    found.append(best_of(drawn[np.argsort(-draft[drawn], kind="stable")], k))
                yield f"draft_of_{name}", k, float(np.mean(found))


def summary_rows(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield means over tasks and seeds, by kind of device, and the gain over random programs.

    ``spread``: standard deviation of the seeds' means; ``low`` and ``high``: 95 % interval of the
    gain over tasks.
    """
    table = pd.DataFrame(rows)
    table["device"] = table.platform.where(~table.platform.str.startswith("cpu"), "cpu")
    keys = ["platform", "task"]
    for (device, k), part in table.groupby(["device", "k"]):
        by_task = part.pivot_table(index=keys, columns="method", values="ratio")
        for method in by_task:
            gain = (by_task[method] - by_task["random"]).to_numpy()

            def mean(chosen: np.ndarray, gain: np.ndarray = gain) -> float:
                return float(gain[chosen].mean())

            low, high = bootstrap_interval(len(gain), mean)
            seeds = part[part.method == method].groupby("seed").ratio.mean()
            yield {
                "device": device, "k": k, "method": method, "tasks": len(by_task),
                "ratio": by_task[method].mean(), "spread": seeds.std() if len(seeds) > 1 else 0.0,
                "gain": gain.mean(), "low": low, "high": high,
            }  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Fit the missing seeds, judge them, write the tables, and store the best seed."""
    torch.set_num_threads(1)
    if not options.seeds:
        raise PrunerError("seeds=[]: give at least one seed")
    recipe, ground = ProposalRecipe(epochs=options.epochs), Ground(more=options.more)
    about = json.loads(json.dumps({"recipe": asdict(recipe), "more": list(options.more)}))
    fits, tables = [], []
    for seed in options.seeds:
        folder = Path(options.work) / f"seed-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, work, found in (("fit", partial(fit, ground, recipe), fits),
                                  ("judge", partial(judge, ground), tables)):  # fmt: skip
            job = Job(
                name=f"{name} {seed}",
                run=partial(work, seed, folder),
                leaves=folder / f"{name}.json",
                about=about,
            )
            found.extend(results([job]))
    out = Path(options.out)
    best = min(fits, key=lambda one: one["valid_loss"])
    for one in fits:
        one.pop("about")
        one["stored"] = one is best
    write_table(out / "fits.csv", fits, ".4f")
    rows = [row for one in tables for row in one["rows"]]
    write_table(out / "results.csv", rows, ".4f")
    write_table(out / "summary.csv", list(summary_rows(rows)), ".3f")
    write_table(out / "legal.csv", [row for one in tables for row in one["legal"]], ".4f")
    if options.store:
        box = bundled_weights()
        ProposalModel.load(Path(options.work) / f"seed-{best['seed']}" / WEIGHTS).save(box)
        write_checksums(box.parent, [box])
    return {"seed": best["seed"], "valid_loss": best["valid_loss"], "bytes": best["bytes"]}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
