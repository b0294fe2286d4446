"""Rates of the hardware form, and the terms that ablations leave out.

Rates are free constants, by default equal for all GPUs, and for all CPUs. They were chosen by hand
with measured programs in view (experiments/draft).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import yaml

from pruner.errors import DataError, check_chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRates:
    """The free constants of GPUs, in instructions of one thread unless named otherwise."""

    base_registers: float = 24.0  # of addresses and loop counters
    reserved_registers: float = 4.0  # not available for the tile
    live_operands: float = 16.0  # operands of S1 that are in registers at the same time
    spill: float = 15.0  # slow-down of arithmetic when the tile does not fit the registers
    rolled: float = 2.0  # slow-down when the tile's indices are not constants
    unroll_limit: float = 200.0  # iterations a compiler unrolls by itself
    multiply_add: float = 2.0
    shared_load: float = 1.25  # of one warp, in cycles of the 32 load lanes
    bank_conflict: float = 0.04  # of a shared load, per extra way
    kept_operands: float = 1.0  # shared loads at most this often the least possible
    loop: float = 4.0  # per iteration of a loop that is not unrolled
    unrolled_body: float = 16.0  # iterations between two loop overheads at least
    stage: float = 9.0  # moving one element to shared memory, index arithmetic included
    vector_saving: float = 0.1  # exponent: staging costs 1 / lanes ** exponent
    short_rows: float = 0.2  # extra staging cost per extra 32-byte sector of a request
    odd_vectors: float = 0.05  # the same for vectors that no instruction loads
    write: float = 4.0  # writing one result
    scattered_write: float = 1.0
    step_cycles: float = 250.0  # latency of one step of the outer reduction: loads and barriers
    fetch_cycles: float = 120.0  # of each load a thread waits for in it
    chain_cycles: float = 4.0  # between dependent instructions
    overlap: float = 4.0  # exponent of the norm that joins issue time and latency
    row_elements: float = 8.0  # run length at which half of a transaction is used
    repeated_traffic: float = 0.02  # share of repeated global traffic that the caches miss
    traffic: float = 0.6  # all global traffic against the peak bandwidth
    idle_threads: float = 0.3  # bandwidth lost when few threads are resident (no shared stage)
    block_launch_ns: float = 100.0  # of a multiprocessor (no shared stage)
    # Off (0 changes nothing): judged on all pools it moved little (experiments/draft_kept).
    whole_waves: float = 0.0  # share of the latency that counts in whole waves of resident blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRates:
    """The free constants, in cycles of one core unless named otherwise."""

    load: float = 0.5  # one load instruction (two load ports)
    store: float = 1.0
    loop_instructions: float = 2.0  # per iteration of a loop that is not unrolled
    issue: float = 4.0  # instructions that a core starts in a cycle
    unroll_limit: float = 64.0  # vector operations a compiler unrolls by itself
    chain: float = 4.0  # latency of a multiply-add
    spill: float = 1.5  # stores and loads per step and result of a tile beyond the registers
    forward: float = 5.0  # latency of a store that the next step loads
    window: float = 16.0  # reduction steps that a core looks ahead, beyond one tile
    overlap: float = 4.0  # exponent of the norm that joins the units of a core
    choice: float = 1.0
    special: float = 15.0  # one function call
    automatic: float = 1.2  # slow-down of arithmetic where only the compiler vectorises
    written: float = 1.2  # slow-down where the pragma writes out lanes and many reduction steps
    l1_bytes: float = 32.0  # per cycle between L1 and L2
    l2_bytes: float = 12.0  # per cycle between L2 and L3
    dram: float = 0.7  # share of the memory bandwidth that is reached
    region_us: float = 10.0  # opening a parallel region, microseconds


R = TypeVar("R", GpuRates, CpuRates)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyzerConstants(Generic[R]):
    """Rates of one platform; `origin` describes their source."""

    rates: R
    origin: str = "defaults"


def load_constants(folder: Path, platform: str, kind: type[R]) -> AnalyzerConstants[R]:
    """Read ``<folder>/<platform>.yaml``, else defaults; raises DataError if damaged."""
    path = folder / f"{platform}.yaml"
    if not path.is_file():
        return AnalyzerConstants(rates=kind())
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or not isinstance(values.get("rates"), dict):
        raise DataError(f"{path}: expected 'rates:' with names and numbers; write it or remove it")
    if unknown := sorted(values.keys() - {"rates", "origin"}):
        raise DataError(f"{path}: unknown {', '.join(unknown)}; known: rates, origin")
    origin = str(values.get("origin", path.name))
    known, rates = [field.name for field in dataclasses.fields(kind)], values["rates"]
    if unknown := sorted(rates.keys() - set(known)):
        raise DataError(f"{path}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
    for name, value in rates.items():
        if type(value) not in (int, float) or not 0 <= value < float("inf"):
            raise DataError(f"{path}: {name} must be a number, 0 or more, got {value!r}")
    return AnalyzerConstants(rates=kind(**rates), origin=origin)


def save_constants(path: Path, constants: AnalyzerConstants[R]) -> None:
    """Write a platform's file."""
    values = dataclasses.asdict(constants)
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


GROUPS = {"c": "compute", "m": "memory"}
Terms = Mapping[str, str | None]  # name of a term, and its group


def _terms(*names: str) -> Terms:
    return {name: name[-1] for name in names}


HARDWARE_TERMS = _terms(  # on GPUs, also on tensor cores
    "issue_c", "wave_c", "rolled_c", "latency_c", "spill_m", "occupancy_m", "transaction_m",
    "cache_m",
)  # fmt: skip
CPU_TERMS = _terms(
    "lanes_c", "issue_c", "chain_c", "choice_c", "balance_c", "register_m", "cache_m"
)  # fmt: skip
# The ablations of Table 10.
PAPER_TERMS = _terms("reuse_c", "warp_c", "wave_c", "registers_m", "shared_m", "transaction_m")
# Blocks against multiprocessors, threads against whole warps; "m" is the paper's P_l0,m.
OFFICIAL_TERMS: Terms = {"wave": "c", "warp": "c", "registers": "m", "reuse": "c", "memory": None}


def without(terms: Terms, name: str | None) -> frozenset[str]:
    """All terms except a group or a term; raises `PrunerError` for an unknown name."""
    if name is None:
        return frozenset(terms)
    check_chosen("model.without", [name], (*GROUPS, *terms))
    return frozenset(term for term, group in terms.items() if name not in (term, group))
