"""One door to the analyzers of GPUs and CPUs: scores of records, decision vectors or loop nests."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from jaxtyping import Bool

from pruner.arrays import Decisions, Scores
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.features.symbols.closed.draft import DraftPlan, Symbols
from pruner.features.symbols.cpu import cpu_symbols
from pruner.features.symbols.gpu import nest_symbols
from pruner.models.analyzer.constants import DraftConstants, Rates, load_constants
from pruner.models.analyzer.cpu import CpuRates, CpuSwitches, cpu_latency_s
from pruner.models.analyzer.hardware import HardwareSwitches, hardware_latency_s
from pruner.models.analyzer.paper import PaperSwitches, paper_latency_s
from pruner.program.dag.dag import ComputeDAG
from pruner.program.device import CpuDevice, Device, GpuDevice, load_device
from pruner.program.te.lower import LoopNests, build_nests
from pruner.program.te.skeleton import group_programs
from pruner.program.te.steps import Primitive
from pruner.program.te.verify import UNROLLED_VTHREADS, GpuLimits

Form = Literal["paper", "hardware"]
_CHUNK = 2048  # programs at once: arrays that stay in the caches
_FLOAT_BYTES = 4


class Plan(Protocol):
    """Symbols of all candidates of one skeleton."""

    def symbols(self, decisions: Decisions) -> Symbols:
        """Symbols of N decision vectors."""


@dataclass(frozen=True, slots=True)
class NestPlan:
    """Symbols by way of loop nests: slower than closed formulas, for any program of the engine."""

    dag: ComputeDAG
    skeleton: tuple[Primitive, ...]
    symbols_of: Callable[[LoopNests], Symbols]

    def symbols(self, decisions: Decisions) -> Symbols:
        """Symbols of N decision vectors.

        Raises:
            UnsupportedProgram: as :func:`build_nests`.
        """
        return self.symbols_of(build_nests(self.dag, self.skeleton, decisions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer(ABC):
    """Draft scores from symbols: ``-log(predicted seconds)``, higher is better.

    ``form``: ``paper`` is the reconstruction of the paper (GPUs), ``hardware`` adds measured
    physics. ``without``: an ablation, "c" or "m" switches that group of penalties off.
    """

    device: Device
    constants: DraftConstants[Any]
    form: Form = "hardware"
    without: str | None = None

    @abstractmethod
    def plan(self, dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> Plan:
        """The fastest way to the symbols of a skeleton's programs."""

    @abstractmethod
    def nest_symbols(self, nests: LoopNests) -> Symbols:
        """Symbols of any loop nests."""

    @abstractmethod
    def latency_s(self, symbols: Symbols) -> Scores:
        """Predicted seconds."""

    @abstractmethod
    def legal(self, symbols: Symbols) -> Bool[np.ndarray, " program"]:
        """Programs that the device can take, as far as symbols tell.

        A quick filter; what is going to be measured passes the whole check
        (:mod:`pruner.program.te.verify`).
        """

    @abstractmethod
    def has_rates_for(self, symbols: Symbols) -> bool:
        """Whether these programs tell much about the rates that calibration fits."""

    def uncalibrated(self) -> "Analyzer":
        """The same with the default rates."""
        return replace(self, constants=DraftConstants(rates=type(self.constants.rates)()))

    def scores(self, symbols: Symbols) -> Scores:
        """Scores of symbols, minus infinity where illegal."""
        return np.where(self.legal(symbols), -np.log(self.latency_s(symbols)), -np.inf)

    def score_nests(self, nests: LoopNests) -> Scores:
        """Scores of loop nests, minus infinity where illegal."""
        return self.scores(self.nest_symbols(nests))

    def score_steps(self, dag: ComputeDAG, steps: Sequence[list[list[Any]]]) -> Scores:
        """Scores of Ansor step lists of one task, which are taken to be legal.

        Minus infinity where the engine cannot replay a skeleton.
        """
        out = np.full(len(steps), -np.inf)
        for group in group_programs(steps)[0]:
            plan = self.plan(dag, group.skeleton)
            for start in range(0, len(group.rows), _CHUNK):
                rows = slice(start, start + _CHUNK)
                try:
                    symbols = plan.symbols(group.decisions[rows])
                except UnsupportedProgram:
                    continue
                out[group.rows[rows]] = -np.log(self.latency_s(symbols))
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAnalyzer(Analyzer):
    """The ``paper`` and ``hardware`` forms on GPUs.

    The released form needs the official symbols (:mod:`pruner.models.analyzer.official`).
    """

    device: GpuDevice
    constants: DraftConstants[Rates]

    def plan(self, dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> Plan:
        """Closed formulas where they exist, else loop nests."""
        try:
            return DraftPlan(dag, skeleton)
        except UnsupportedProgram:
            return NestPlan(dag, skeleton, nest_symbols)

    def nest_symbols(self, nests: LoopNests) -> Symbols:
        """Symbols of any loop nests."""
        return nest_symbols(nests)

    def latency_s(self, symbols: Symbols) -> Scores:
        """Predicted seconds."""
        if self.form == "paper":
            chosen = PaperSwitches.without(self.without) if self.without else None
            return paper_latency_s(symbols, self.device, chosen)
        terms = HardwareSwitches.without(self.without) if self.without else None
        return hardware_latency_s(symbols, self.device, self.constants, terms)

    def has_rates_for(self, symbols: Symbols) -> bool:
        """Programs that stage operands in shared memory."""
        return symbols.stages

    def legal(self, symbols: Symbols) -> Bool[np.ndarray, " program"]:
        """Threads, virtual threads, shared memory and vectors within the limits of a block."""
        limits = GpuLimits.of_device(self.device)
        threads = symbols["l1_para_info"]
        shared_bytes = symbols["l1_mem_alloc"].sum(axis=0) * _FLOAT_BYTES
        fits = (threads <= limits.threads).all(axis=0) & (shared_bytes <= limits.shared_bytes)
        fits &= (symbols["vector"] * _FLOAT_BYTES <= limits.vector_bytes).all(axis=0)
        fits &= (symbols["vthreads"] < UNROLLED_VTHREADS).all(axis=0)
        return fits


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuAnalyzer(Analyzer):
    """The ``hardware`` form on CPUs; every program is legal."""

    device: CpuDevice
    constants: DraftConstants[CpuRates]

    def plan(self, dag: ComputeDAG, skeleton: tuple[Primitive, ...]) -> Plan:
        """By way of loop nests."""
        return NestPlan(dag, skeleton, self.nest_symbols)

    def nest_symbols(self, nests: LoopNests) -> Symbols:
        """Symbols of any loop nests."""
        return cpu_symbols(nests, self.device)

    def latency_s(self, symbols: Symbols) -> Scores:
        """Predicted seconds."""
        terms = CpuSwitches.without(self.without) if self.without else None
        return cpu_latency_s(symbols, self.device, self.constants.rates, terms)

    def has_rates_for(self, symbols: Symbols) -> bool:
        """All of them."""
        return True

    def legal(self, symbols: Symbols) -> Bool[np.ndarray, " program"]:
        """All of them."""
        return np.ones(symbols.values.shape[2], bool)


def load_analyzer(
    conf: Path, platform: str, *, form: Form = "hardware", without: str | None = None
) -> Analyzer:
    """The analyzer of a platform from ``<conf>/platform`` and ``<conf>/draft``.

    Raises:
        DataError: unknown platform or a missing constant, with the fix.
        PrunerError: the paper's form was asked for a CPU.
    """
    device = load_device(conf / "platform" / f"{platform}.yaml")
    if isinstance(device, GpuDevice):
        constants = load_constants(conf / "draft", platform, Rates)
        return GpuAnalyzer(device=device, constants=constants, form=form, without=without)
    assert isinstance(device, CpuDevice), device
    if form != "hardware":
        raise PrunerError(f"platform={platform}: the {form} form is for GPUs; use form=hardware")
    cpu = load_constants(conf / "draft", platform, CpuRates)
    return CpuAnalyzer(device=device, constants=cpu, form=form, without=without)
