"""Score step lists or loop nests on GPUs and CPUs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from jaxtyping import Bool

from pruner.arrays import Scores
from pruner.errors import PrunerError
from pruner.features.statement.analysis import analyse
from pruner.features.symbols.cpu import cpu_symbols_of
from pruner.features.symbols.gpu import gpu_symbols
from pruner.features.symbols.official import official_symbols
from pruner.features.symbols.symbol_table import PerProgram, PerStatement, Symbols
from pruner.models.analyzer.constants import (
    CPU_TERMS,
    HARDWARE_TERMS,
    OFFICIAL_TERMS,
    PAPER_TERMS,
    AnalyzerConstants,
    CpuRates,
    GpuRates,
    Terms,
    load_constants,
    without,
)
from pruner.models.analyzer.cpu import cpu_latency_s
from pruner.models.analyzer.hardware import hardware_latency_s
from pruner.models.analyzer.paper import official_latency_ms, paper_latency_s
from pruner.program.device import CpuDevice, Device, GpuDevice, load_device
from pruner.program.nests import LoopNests
from pruner.program.replay import Definition, replay

Formula = Literal["paper", "hardware"]
AnyFormula = Literal["official"] | Formula
FORMULAS = ("official", *get_args(Formula))
_GPU_TERMS: Mapping[AnyFormula, Terms] = {
    "official": OFFICIAL_TERMS,
    "paper": PAPER_TERMS,
    "hardware": HARDWARE_TERMS,
}
# amounts [.., program], and the largest amount allowed
Limits = Sequence[tuple[PerProgram | PerStatement, float]]
_CHUNK = 2048  # programs at once: arrays that stay in the caches
_UNROLLED_VTHREADS = 16  # TVM unrolls fewer virtual threads; more stay a loop, which it refuses


def terms(form: AnyFormula, device: type[Device]) -> Terms:
    """The terms of a form on a kind of device."""
    return CPU_TERMS if issubclass(device, CpuDevice) else _GPU_TERMS[form]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer(ABC):
    """Scores ``-log(predicted time)``, higher is better; nothing is learned.

    ``form``: ``official`` is the public release (GPUs), ``paper`` the reconstruction of the paper
    (GPUs), ``hardware`` adds measured physics. ``without``: an ablation; "c" or "m" switches that
    group of penalties off, the name of a switch only that penalty.
    """

    device: Device
    form: AnyFormula = "hardware"
    without: str | None = None

    @property
    def _terms(self) -> frozenset[str]:
        return without(terms(self.form, type(self.device)), self.without)

    @abstractmethod
    def score_nests(self, nests: LoopNests) -> Scores:
        """Scores of loop nests, minus infinity beyond the device's limits."""

    def score_all(self, nests: Sequence[LoopNests]) -> list[Scores]:
        """Scores of several loop nests, computed at once where that is cheaper."""
        return [self.score_nests(one) for one in nests]

    @abstractmethod
    def _unlimited(self, nests: LoopNests) -> Scores:
        """Scores of loop nests, assumed to fit the device."""

    def score_steps(self, dag: Definition, steps: Sequence[list[list[Any]]]) -> Scores:
        """Scores of recorded step lists; minus infinity where one cannot be replayed."""
        out = np.full(len(steps), -np.inf)
        for rows, scores in replay(dag, steps, self._unlimited, _CHUNK).parts:
            out[rows] = scores
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class SymbolAnalyzer(Analyzer):
    """Scores from symbols, ``-log(predicted seconds)``, with the rates of a platform.

    The ``paper`` and ``hardware`` forms on GPUs, and the ``hardware`` form on CPUs.
    """

    constants: AnalyzerConstants[Any]

    def symbols(self, nests: LoopNests) -> Symbols:
        """Symbols of N programs."""
        return self.all_symbols([nests])[0]

    def all_symbols(self, nests: Sequence[LoopNests]) -> list[Symbols]:
        """Symbols of several loop nests; on CPUs equal statements are computed once."""
        if isinstance(self.device, CpuDevice):
            return cpu_symbols_of(nests, self.device)
        return [gpu_symbols(one) for one in nests]

    def score_all(self, nests: Sequence[LoopNests]) -> list[Scores]:
        """See :class:`Analyzer`."""
        return [self.scores(symbols) for symbols in self.all_symbols(nests)]

    def score_nests(self, nests: LoopNests) -> Scores:
        """See :class:`Analyzer`."""
        return self.scores(self.symbols(nests))

    def latency_s(self, symbols: Symbols) -> Scores:
        """Predicted seconds [program]."""
        device, constants = self.device, self.constants
        if isinstance(device, CpuDevice):
            return cpu_latency_s(symbols, device, constants.rates, self._terms)
        assert isinstance(device, GpuDevice), device
        if self.form == "paper":
            return paper_latency_s(symbols, device, self._terms)
        return hardware_latency_s(symbols, device, constants, self._terms)

    def limits(self, symbols: Symbols) -> Limits:
        """Amounts [.., program] that the device limits, and the largest amount allowed."""
        # CPUs accept every program.
        return _block_limits(symbols, self.device) if isinstance(self.device, GpuDevice) else []

    def fits_limits(self, symbols: Symbols) -> Bool[np.ndarray, " program"]:
        """Programs [program] within the device's limits, judged by symbols: a quick filter."""
        return _within(self.limits(symbols), symbols.num_programs)

    def has_rates_for(self, symbols: Symbols) -> bool:
        """Whether calibration fits their rates: on GPUs of programs with a shared stage."""
        return isinstance(self.device, CpuDevice) or symbols.stages

    def uncalibrated(self) -> "SymbolAnalyzer":
        """The same analyzer with the default rates."""
        return replace(self, constants=AnalyzerConstants(rates=type(self.constants.rates)()))

    def scores(self, symbols: Symbols) -> Scores:
        """Scores of symbols, minus infinity beyond the device's limits."""
        return np.where(self.fits_limits(symbols), -np.log(self.latency_s(symbols)), -np.inf)

    def _unlimited(self, nests: LoopNests) -> Scores:
        return -np.log(self.latency_s(self.symbols(nests)))


def _block_limits(symbols: Symbols, device: GpuDevice) -> Limits:
    """Threads, shared memory, vectors and virtual threads of a block, and their limits."""
    shared_limit = device.shared_bytes_per_block
    if symbols.shared_bytes is not None:  # dynamic memory may use the opt-in limit
        shared_limit = device.shared_bytes_per_block_opt_in or shared_limit
    element = np.maximum(symbols["own_bytes"], symbols["global_bytes"])
    return [
        (symbols["l1_para_info"], device.max_threads_per_block),
        (symbols.block_bytes(), shared_limit),
        (symbols["vector"] * element, device.vector_bytes),
        (symbols["vthreads"], _UNROLLED_VTHREADS - 1),
    ]


def _within(limits: Limits, num: int) -> Bool[np.ndarray, " program"]:
    fits = np.ones(num, bool)
    for amount, most in limits:
        fits &= (amount <= most).reshape(-1, num).all(axis=0)
    return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedAnalyzer(Analyzer):
    """The ``official`` form: ``-log(milliseconds)`` of the public release, to the digit."""

    device: GpuDevice
    form: AnyFormula = "official"

    def score_nests(self, nests: LoopNests) -> Scores:
        """See :class:`Analyzer`; limits as in the other forms."""
        fits = _within(_block_limits(gpu_symbols(nests), self.device), nests.num_programs)
        return np.where(fits, self._unlimited(nests), -np.inf)

    def _unlimited(self, nests: LoopNests) -> Scores:
        symbols = official_symbols(nests, analyse([nests])[0])
        return -np.log(official_latency_ms(symbols, self.device, self._terms))


@overload
def load_analyzer(
    conf: Path, platform: str, *, form: Formula = "hardware", without: str | None = None
) -> SymbolAnalyzer: ...
@overload
def load_analyzer(
    conf: Path, platform: str, *, form: AnyFormula, without: str | None = None
) -> Analyzer: ...
def load_analyzer(
    conf: Path, platform: str, *, form: AnyFormula = "hardware", without: str | None = None
) -> Analyzer:
    """The analyzer of a platform from ``<conf>/platform`` and ``<conf>/draft``.

    Raises DataError for an unknown platform, PrunerError for another form than hardware for a CPU.
    """
    device = load_device(conf / "platform" / f"{platform}.yaml")
    if not isinstance(device, GpuDevice) and form != "hardware":
        raise PrunerError(
            f"platform={platform}: the {form} form is for GPUs; use draft.form=hardware"
        )
    if form == "official" and isinstance(device, GpuDevice):
        return ReleasedAnalyzer(device=device, without=without)
    kind: Any = GpuRates if isinstance(device, GpuDevice) else CpuRates
    constants = load_constants(conf / "draft", platform, kind)
    return SymbolAnalyzer(device=device, constants=constants, form=form, without=without)
