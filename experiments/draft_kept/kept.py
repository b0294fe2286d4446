"""Regret of the draft's shortlist on recorded pools, against chance.

There are two kinds of pools: complete pools, and their best tenths. Early in a search the draft
gets many bad programs, later only good programs; the best tenth of a pool resembles the later case.
The regret is ``1 - best / best of the shortlist``, as a ratio of sums over tasks and as a mean over
tasks. The regret ratio divides by the exact expected regret of a random draft of the same size.
Selections that draw at random are averaged over draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.errors import UnsupportedProgram
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.analyzer.quality import TaskSymbols, score_task, task_symbols
from pruner.models.judging.chance import expected_latency, expected_ratio
from pruner.models.judging.metrics import ScoredTask, regret_against_random
from pruner.models.judging.summary import draft_sizes
from pruner.progress import Progress
from pruner.search.offline.recorded import decision_rows
from pruner.search.selection import kept
from pruner.study.draft_quality import Pools

WHOLE, BEST_TENTH = "all", "best tenth"
SIZES = ("2pct", "eighth")
LEAST = 10  # programs of a pool that is judged
DRAWS = 20  # of ways to keep that draw
EVERY_FOLD = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """A way to keep programs: see :func:`pruner.search.selection.kept`."""

    name: str
    apart: float = 0.0
    noise: float = 0.0

    @property
    def draws(self) -> int:
        """Number of draws; above 1 only with noise, which selects at random."""
        return DRAWS if self.noise else 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptPool:
    """Programs of one task: latencies, decisions, and scores by form.

    `fold`: 0 or 1 by a hash of the work, to choose on one half and report the other.
    """

    name: str
    fold: int
    latency_s: Float[np.ndarray, " program"]
    decisions: Int[np.ndarray, "program slot"]
    scores: Mapping[str, Float[np.ndarray, " program"]]

    def best_tenth(self) -> "KeptPool":
        """The fastest tenth of its programs, in their order."""
        num = -(-len(self.latency_s) // 10)
        rows = np.sort(np.argsort(self.latency_s, kind="stable")[:num])
        return replace(
            self,
            latency_s=self.latency_s[rows],
            decisions=self.decisions[rows],
            scores={name: score[rows] for name, score in self.scores.items()},
        )


def pools_of(
    root: RecordRoot,
    platform: str,
    forms: Mapping[str, Mapping[str, float]],
    *,
    conf: Path,
    progress: Progress | None = None,
) -> list[KeptPool]:
    """Every measured task of a platform that the analyzer can score.

    `forms`: rates that differ from the defaults, by the name of a form; rates that a kind of device
    does not have are left out. Raises DataError for a platform without records or description.
    """
    analyzer = load_analyzer(conf, platform).uncalibrated()
    variants = variants_of(analyzer, forms)
    pools = Pools(root, progress or Progress())
    found = []
    with Quarantine() as quarantine:
        read = pools.of(platform, analyzer.device, root.read(quarantine, platform))
        for records in read:
            try:
                task = task_symbols(records, analyzer, pools.index)
            except UnsupportedProgram as error:
                pools.refuse(records, error.reason, str(error))
                continue
            if not task.groups:
                pools.refuse(records, "no-symbols", "the analyzer knows no program of it")
                continue
            scores = {name: _known(task, form) for name, form in variants.items()}
            found.append(
                KeptPool(
                    name=task.name,
                    fold=task.fold,
                    latency_s=task.latency_s,
                    decisions=decision_rows(records.select(records.valid)),
                    scores=scores,
                )
            )
    return found


def variants_of(
    analyzer: SymbolAnalyzer, forms: Mapping[str, Mapping[str, float]]
) -> dict[str, SymbolAnalyzer]:
    """Analyzers with other rates; only forms whose rates the device has."""
    rates = analyzer.constants.rates
    known = {field.name for field in fields(rates)}
    return {
        name: replace(
            analyzer, constants=replace(analyzer.constants, rates=replace(rates, **values))
        )
        for name, values in forms.items()
        if values.keys() <= known
    }


def _known(task: TaskSymbols, analyzer: SymbolAnalyzer) -> Float[np.ndarray, " program"]:
    """Scores; a program without symbols is worst, not forbidden.

    All programs of a pool ran.
    """
    score = score_task(task, analyzer).score
    known = np.isfinite(score)
    return np.where(known, score, score[known].min() - 1 if known.any() else 0.0)


def kept_rows(
    platform: str, pools: Sequence[KeptPool], keepings: Sequence[Keeping], *, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """A row for every pool selection, fold, form, way and size."""
    for selection, chosen in _selections(pools):
        for form in chosen[0].scores if chosen else ():
            for keeping in keepings:
                best_s = {size: _best_kept(chosen, form, keeping, size, seed) for size in SIZES}
                for fold in (EVERY_FOLD, 0, 1):
                    own = [n for n, p in enumerate(chosen) if fold in (EVERY_FOLD, p.fold)]
                    for size in SIZES if own else ():
                        about = {"platform": platform, "pools": selection, "fold": fold}
                        about |= {"form": form, "keeping": keeping.name, "size": size}
                        numbers = _numbers([chosen[n] for n in own], best_s[size][own], size)
                        yield about | numbers


def _selections(pools: Sequence[KeptPool]) -> list[tuple[str, list[KeptPool]]]:
    tenths = [pool.best_tenth() for pool in pools]
    return [
        (name, [pool for pool in found if len(pool.latency_s) >= LEAST])
        for name, found in ((WHOLE, pools), (BEST_TENTH, tenths))
    ]


def _size(pool: KeptPool, size: str) -> int:
    return draft_sizes([_scored(pool)])[size][0]


def _scored(pool: KeptPool) -> ScoredTask:
    return ScoredTask(name=pool.name, latency_s=pool.latency_s, score=-pool.latency_s)


def _best_kept(
    pools: Sequence[KeptPool], form: str, keeping: Keeping, size: str, seed: int
) -> Float[np.ndarray, "pool draw"]:
    """Latency of the best program kept of every pool, draw by draw."""
    rng = np.random.default_rng(seed)
    out = np.empty((len(pools), keeping.draws))
    for row, pool in enumerate(pools):
        for draw in range(keeping.draws):
            rows = kept(
                pool.scores[form],
                _size(pool, size),
                rng=rng,
                decisions=pool.decisions,
                apart=keeping.apart,
                noise=keeping.noise,
            )
            out[row, draw] = pool.latency_s[rows].min()
    return out


def _numbers(
    pools: Sequence[KeptPool], best_s: Float[np.ndarray, "pool draw"], size: str
) -> dict[str, Any]:
    tasks = [_scored(pool) for pool in pools]
    sizes = [_size(pool, size) for pool in pools]
    bests = np.array([task.best_s for task in tasks])
    chance_s = np.array([expected_latency(t, k) for t, k in zip(tasks, sizes, strict=True)])
    chance_mean = float(np.mean([expected_ratio(t, k) for t, k in zip(tasks, sizes, strict=True)]))
    ours = float(bests.sum() / best_s.mean(axis=1).sum())
    chance = float(bests.sum() / chance_s.sum())
    ours_mean = float((bests[:, None] / best_s).mean())
    return {
        "num_tasks": len(pools),
        "num_programs": sum(task.num_programs for task in tasks),
        "best1": ours,
        "random": chance,
        "regret_ratio": regret_against_random(ours, chance),
        "best1_task_mean": ours_mean,
        "random_task_mean": chance_mean,
        "task_mean_regret_ratio": regret_against_random(ours_mean, chance_mean),
    }
