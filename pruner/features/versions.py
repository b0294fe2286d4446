"""What an older version of the features has in common with today's, so that its models still rank.

A version changes with any column of any program; a model need only be trained again where something
that it learned from has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from pruner.features.dataflow import DataflowKind
from pruner.features.hardware import platform_kind

Rows = frozenset[DataflowKind | None]

_NOTHING: Rows = frozenset()
_ALL: Rows = frozenset(("paper", "official", None))
_ON_CPUS: dict[tuple[str, str], Rows] = {
    # the paper's rows of CPU programs were zeros
    ("official-1", "official-2"): frozenset(("official", None)),
}
"""By an older and a newer version that are alike for GPU programs: what is alike for CPUs."""


def unchanged_rows(old: str, new: str, platforms: Iterable[str]) -> Rows:
    """Which dataflow rows a model may read that learned from `platforms` with version `old`.

    None stands for a model that reads none. Empty where all such models have to be trained again. A
    platform that ``conf/platform`` does not have, and no platform at all, count as CPUs.

    >>> unchanged_rows("official-1", "official-2", ["v100"]) == {"paper", "official", None}
    True
    """
    if old == new:
        return _ALL
    if (old, new) not in _ON_CPUS:
        return _NOTHING
    return _ALL if {*map(platform_kind, platforms)} == {"gpu"} else _ON_CPUS[old, new]
