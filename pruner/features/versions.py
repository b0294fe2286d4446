"""Compare feature versions, so that models of older versions still rank."""

from __future__ import annotations

from collections.abc import Iterable

from pruner.features.dataflow import DataflowKind
from pruner.features.device_vector import platform_kind

Rows = frozenset[DataflowKind | None]

_NOTHING: Rows = frozenset()
_ALL: Rows = frozenset(("paper", "official", None))
_FIRST = "official-1"
_ON_CPUS: dict[str, Rows] = {
    # the paper's rows of CPU programs were zeros
    "official-2": frozenset(("official", None)),
    # their cache lines counted rows that lie side by side one by one
    "official-3": frozenset(("official", None)),
}
"""By version: the rows that are as before for CPU programs. GPU programs are equal in all."""


def unchanged_rows(old: str, new: str, platforms: Iterable[str]) -> Rows:
    """Return the kinds of dataflow rows that models of version `old` may read.

    None in the set stands for a model without such rows. The set is empty where all models for
    `platforms` have to be trained again; unknown or no platforms count as CPUs.

    >>> unchanged_rows("official-1", "official-3", ["v100"]) == {"paper", "official", None}
    True
    """
    if old == new:
        return _ALL
    known = [_FIRST, *_ON_CPUS]
    if old not in known or new not in known[known.index(old) :]:
        return _NOTHING
    if {*map(platform_kind, platforms)} == {"gpu"}:
        return _ALL
    between = known[known.index(old) + 1 : known.index(new) + 1]
    return _ALL.intersection(*(_ON_CPUS[version] for version in between))
