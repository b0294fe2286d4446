"""The analyzer's terms of a program as columns for a learned model.

Learning the residual of an analytic model is an old idea of performance prediction (hybrid models:
Didona et al., ICPE 2015, "Enhancing performance prediction robustness by combining analytical
modeling and machine learning"). Three groups, one vector a program:

* ``score``: ``-log(predicted seconds)`` of the hardware form with the default rates;
  fitted rates of a platform's file are not read;
* a term each (:mod:`pruner.models.analyzer.constants`): ``log(predicted seconds / predicted seconds
  without the term)``, what the term costs the program on this device. Terms of one name share a
  column;
* a symbol each: ``log2(1 + sum over statements)``, GPUs and CPUs in columns of their own.

A column that a kind of device lacks is zero there. Values are of the device, so one model can learn
from many: what a wave or a spilled register costs is the same thing on each.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Float32

from pruner.features.columns import Column
from pruner.features.symbols.symbol_table import CPU_COLUMNS, GPU_COLUMNS, Symbols
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer, terms
from pruner.models.analyzer.constants import CPU_TERMS, HARDWARE_TERMS
from pruner.paths import conf_folder
from pruner.program.nests import LoopNests

SCORE = 0  # column of the analyzer's score
_LARGEST = 60.0  # of a column's size: values of degenerate programs are cut here
_SOURCE = "this project, pruner.models.analyzer.columns"
_TERMS = tuple({**HARDWARE_TERMS, **CPU_TERMS})


DRAFT_COLUMNS: tuple[Column, ...] = (
    Column(name="score", unit="log(1/s)", formula="-log(predicted seconds)", source=_SOURCE),
    *(
        Column(name=name, unit="log", formula="log(seconds / seconds without it)", source=_SOURCE)
        for name in _TERMS
    ),
    *(
        Column(
            name=f"{kind}.{column.name}",
            unit="log2",
            formula=f"log2(1 + sum over statements of: {column.formula})",
            source=column.source,
        )
        for kind, columns in (("gpu", GPU_COLUMNS), ("cpu", CPU_COLUMNS))
        for column in columns
    ),
)
NUM_DRAFT_COLUMNS = len(DRAFT_COLUMNS)
_PLACE = {column.name: place for place, column in enumerate(DRAFT_COLUMNS)}

DraftValues = Float32[np.ndarray, "program draft"]


class DraftColumns:
    """`DRAFT_COLUMNS` of programs on one device, from their loop nests."""

    def __init__(self, analyzer: SymbolAnalyzer) -> None:
        self._analyzer = analyzer
        names = terms(analyzer.form, type(analyzer.device))
        self._without = {name: replace(analyzer, without=name) for name in names}

    def __call__(self, nests: Sequence[LoopNests]) -> list[DraftValues]:
        """float32 [N, NUM_DRAFT_COLUMNS] of each nest."""
        return [self.of(symbols) for symbols in self._analyzer.all_symbols(nests)]

    def of(self, symbols: Symbols) -> DraftValues:
        """float32 [N, NUM_DRAFT_COLUMNS] from given symbols."""
        out = np.zeros((NUM_DRAFT_COLUMNS, symbols.num_programs))
        latency_s = self._analyzer.latency_s(symbols)
        out[SCORE] = -np.log(latency_s)
        # A program without arithmetic takes no time without its memory: an infinite ratio, cut.
        with np.errstate(divide="ignore", invalid="ignore"):
            for name, analyzer in self._without.items():
                out[_PLACE[name]] = np.log(latency_s / analyzer.latency_s(symbols))
        total = np.log2(1.0 + symbols.values.sum(axis=0))
        for column, values in zip(symbols.columns, total, strict=True):
            out[_PLACE[f"{self._analyzer.device.kind}.{column.name}"]] = values
        cut = np.nan_to_num(out, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        return np.ascontiguousarray(cut.clip(-_LARGEST, _LARGEST).T, dtype=np.float32)


@cache
def draft_columns(platform: str) -> DraftColumns:
    """The columns of a described platform by the default rates; raises DataError for another."""
    return DraftColumns(load_analyzer(conf_folder(), platform).uncalibrated())
