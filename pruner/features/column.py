"""What one feature column means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A named column: its ``unit``, the ``formula`` of its value and the ``source`` of both."""

    name: str
    unit: str
    formula: str
    source: str
