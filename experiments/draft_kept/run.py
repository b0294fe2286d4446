"""Evaluate the draft's shortlists on recorded pools and their best tenths.

    python -m experiments.draft_kept.run data.root=DIR [platforms=[k80,v100,mi50,a100]]

The reference is chance. The forms are the hardware form with the default rates, and the hardware
form with a term that is off by default. The selections are: by score alone; apart from each other;
partly at random among nearly equal scores. A shortlist has 1/50 or 1/8 of the programs, or the
number of programs that a search measures first (4, 8 or 16). The script writes results.csv into
out=, by default here; rows of a platform replace its earlier rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.script import Data, run_script
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskRecords
from pruner.files import merged_table, write_table
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.analyzer.quality import TaskSymbols, score_task, task_symbols
from pruner.models.judging.judge import draft_sizes, expected_latency, expected_ratio
from pruner.models.judging.metrics import ScoredTask, regret_against_random
from pruner.paths import conf_folder
from pruner.search.explorer import kept
from pruner.search.offline.recorded import decision_rows
from pruner.study.draft_quality import Pools

# Early in a search the draft gets many bad programs, later only good programs; the best tenth of a
# pool resembles the later case. The regret is 1 - best / best of the shortlist, as a ratio of sums
# over tasks and as a mean over tasks. The regret ratio divides by the exact expected regret of a
# random draft of the same size. Selections that draw at random are averaged over draws.
WHOLE, BEST_TENTH = "all", "best tenth"
SIZES = ("2pct", "eighth")
FIRST = {"first 4": 4, "first 8": 8, "first 16": 16}  # programs that a search measures first
LEAST = 10  # programs of a pool that is judged
DRAWS = 20  # of ways to keep that draw
EVERY_FOLD = "both"
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """A way to keep programs: see :func:`pruner.search.explorer.kept`."""

    name: str
    apart: float = 0.0
    noise: float = 0.0

    @property
    def draws(self) -> int:
        """Number of draws; above 1 only with noise, which selects at random."""
        return DRAWS if self.noise else 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptPool:
    """Programs of one task; `fold` 0 (to choose) or 1 (to report)."""

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


DEFAULT_FORM = "hardware"
FORMS: dict[str, dict[str, float]] = {
    DEFAULT_FORM: {},
    "whole_waves": {"whole_waves": 1.0},
}
KEEPINGS = (
    Keeping(name="score"),
    Keeping(name="apart_10", apart=0.1),
    Keeping(name="apart_20", apart=0.2),
    Keeping(name="apart_50", apart=0.5),
    Keeping(name="noise_10", noise=0.1),
    Keeping(name="noise_25", noise=0.25),
    Keeping(name="noise_50", noise=0.5),
    Keeping(name="apart_50_noise_25", apart=0.5, noise=0.25),
)
KEY = ("platform", "pools", "fold", "form", "keeping", "size")


def pools_of(root: RecordRoot, platform: str) -> list[KeptPool]:
    """Every measured task that the analyzer can score; a program without symbols is worst.

    Raises DataError for a platform without records or description.
    """
    analyzer = load_analyzer(conf_folder(), platform).uncalibrated()
    variants = variants_of(analyzer, FORMS)
    pools = Pools(root, ON_STDERR)
    found = []
    with Quarantine() as quarantine:
        read = pools.of(platform, analyzer.device, root.read(quarantine, platform))
        for records, task in pools.each(read, _with_symbols, analyzer):
            if not task.groups:
                pools.refuse(records, "no-symbols", "the analyzer knows no program of it")
                continue
            scores = {}
            for name, form in variants.items():
                score = score_task(task, form).score
                known = np.isfinite(score)
                scores[name] = np.where(known, score, score[known].min() - 1 if known.any() else 0)
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


def _with_symbols(records: TaskRecords, *others: Any) -> tuple[TaskRecords, TaskSymbols]:
    return records, task_symbols(records, *others)


def variants_of(
    analyzer: SymbolAnalyzer, forms: Mapping[str, Mapping[str, float]]
) -> dict[str, SymbolAnalyzer]:
    """Analyzers by form with other rates, if the device has them."""
    rates = analyzer.constants.rates
    known = {field.name for field in fields(rates)}
    return {
        name: replace(
            analyzer, constants=replace(analyzer.constants, rates=replace(rates, **values))
        )
        for name, values in forms.items()
        if values.keys() <= known
    }


def kept_rows(
    platform: str, pools: Sequence[KeptPool], keepings: Sequence[Keeping], *, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """A row for every pool selection, fold, form, way and size."""
    tenths = [pool.best_tenth() for pool in pools]
    for selection, whole in ((WHOLE, pools), (BEST_TENTH, tenths)):
        for size in (*SIZES, *FIRST):
            least = max(LEAST, 2 * FIRST.get(size, 0))
            chosen = [pool for pool in whole if len(pool.latency_s) >= least]
            for form, keeping in _ways(chosen, keepings, size):
                best_s = _best_kept(chosen, form, keeping, size, seed)
                for fold in (EVERY_FOLD, 0, 1):
                    own = [n for n, p in enumerate(chosen) if fold in (EVERY_FOLD, p.fold)]
                    if own:
                        about = {"platform": platform, "pools": selection, "fold": fold}
                        about |= {"form": form, "keeping": keeping.name, "size": size}
                        yield about | _numbers([chosen[n] for n in own], best_s[own], size)


def _ways(
    pools: Sequence[KeptPool], keepings: Sequence[Keeping], size: str
) -> Iterator[tuple[str, Keeping]]:
    """Forms and selections of a size; without noise for the first programs."""
    for form in pools[0].scores if pools else ():
        for keeping in keepings:
            if size not in FIRST or (form == DEFAULT_FORM and not keeping.noise):
                yield form, keeping


def _size(pool: KeptPool, size: str) -> int:
    return FIRST.get(size) or draft_sizes([_scored(pool)])[size][0]


def _scored(pool: KeptPool) -> ScoredTask:
    return ScoredTask(name=pool.name, latency_s=pool.latency_s, score=-pool.latency_s)


def _best_kept(
    pools: Sequence[KeptPool], form: str, keeping: Keeping, size: str, seed: int
) -> Float[np.ndarray, "pool draw"]:
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


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above."""

    data: Data = field(default_factory=Data)
    platforms: list[str] = field(default_factory=lambda: ["k80", "v100", "mi50", "a100"])
    seed: int = 0
    out: str = str(HERE)


def run(options: Options) -> dict[str, Any]:
    """Judge every platform; returns the ways' counts of reached goals."""
    root, path = RecordRoot(Path(options.data.root)), Path(options.out) / "results.csv"
    rows: list[dict[str, Any]] = []
    for platform in options.platforms:
        pools = pools_of(root, platform)
        rows += kept_rows(platform, pools, KEEPINGS, seed=options.seed)
        write_table(path, merged_table(path, rows, KEY), ".6f")
        shown = {"platform": platform, "fold": EVERY_FOLD, "form": DEFAULT_FORM}
        say(as_table([row for row in rows if shown.items() <= row.items()]))
    return {"results": str(path), "meets": meets(rows)}


def meets(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Count pools and sizes whose regret is at most a third of chance's, by form and way.

    Best tenths are at most chance's; task means of both folds together.
    """
    goals = {"all": 1 / 3, "best tenth": 1.0}
    found: dict[str, list[bool]] = {}
    for row in rows:
        if row["fold"] == EVERY_FOLD and row["size"] in SIZES:
            met = row["task_mean_regret_ratio"] <= goals[row["pools"]]
            found.setdefault(f"{row['form']}/{row['keeping']}", []).append(met)
    return {name: f"{sum(each)} of {len(each)}" for name, each in found.items()}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
