"""What ``conf/policy`` can choose besides the rounds of :mod:`pruner.search.policy`."""

from __future__ import annotations

from dataclasses import dataclass

from pruner.errors import PrunerError


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomDraws:
    """Random programs that are legal, without model; it avoids what earlier failures taught."""

    draws: int = 128  # at once, of which the first new ones are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSchedule:
    """TVM's own evolutionary search with XGBoost; the defaults are TVM's.

    With fewer than ``num_warmup_samples`` measured programs TVM's model scores at random.
    """

    num_warmup_samples: int = 100

    population_size: int = 512
    init_measured_ratio: float = 0.2
    init_min_unmeasured: int = 50
    genetic_num_iters: int = 4
    genetic_mutate_prob: float = 0.85
    eps_greedy: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ansor:
    """Ansor's own search and model, in TVM 0.19 and its own environment; CPUs only."""

    environment: str = ".venv-ansor"
    population: int = 2048
    generations: int = 4
    num_warmup_samples: int = 100  # measured programs before the model counts

    def __post_init__(self) -> None:
        """Raises `PrunerError` on numbers that cannot work."""
        if min(self.population, self.generations) < 1:
            raise PrunerError("policy=ansor_tvm: population and generations must be at least 1")
