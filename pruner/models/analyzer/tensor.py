"""The analyzer of programs on tensor cores: fragments, warps, and copies.

A block's time on a multiprocessor is that of its busiest unit: matrix units at their peak, shared
memory that feeds fragments (``Fm + Fn`` loads for ``Fm Fn`` products, so that large warp tiles are
worth their registers), the lanes that fetch and store, and the load units, one cache line of a
request a cycle. A block alone also waits: for every step of the outer reduction, for each load of a
thread in it, and for each product of a warp. Where the space has no pipeline, copies and products
of one block add up; other resident blocks hide them. A pipeline copies some steps ahead: then the
slower of both counts, and only the first copy is waited for; fragments exist twice, those in use
and the next. Fragments beyond the registers of a thread spill, and fragments that are indexed by
rolled loops live in memory.

The constants are of the hardware (CUDA C++ Programming Guide, white papers) or plain guesses. The
cycles of a load were chosen with 456 programs of 24 tasks on an H200 in view (experiments/gpu).
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import PerProgram, Symbols
from pruner.models.analyzer.constants import HARDWARE_TERMS
from pruner.program.device import GpuDevice
from pruner.program.nests import ACCUMULATORS, OPERAND_FRAGMENTS, SHARED, Scope

# Cycles are of a multiprocessor.
_SHARED_BYTES_PER_CYCLE = 128.0
_FETCH_INSTRUCTIONS = 14.0  # one vector: address, guard, load, store
_COPY_INSTRUCTIONS = 10.0  # the same copied asynchronously, past the registers
_STEP_CYCLES = 800.0  # a fetch from global memory and two barriers
_LOAD_CYCLES = 60.0  # of a thread's load, where its loads of a step are issued in a row
_ROLLED_LOAD_CYCLES = 100.0  # where a loop runs them, so that each waits for the last
_WRITTEN_OUT = 16.0  # loads of a step that a compiler writes out by itself
_PRODUCT_CYCLES = 40.0  # from loading fragments to the product that uses them
_BASE_REGISTERS = 40.0
_SPILL = 15.0  # slow-down when fragments do not fit the registers
_ROLLED = 3.0  # slow-down when their indices are not constants
_UNROLL_LIMIT = 128.0  # products a compiler unrolls by itself
_CACHED_BANDWIDTH = 2.6  # of the second-level cache, in bandwidths of memory
_OVERLAP = 4.0  # exponent of the norm that joins units working at the same time
_OVERHEAD_S = 2e-6  # launch of a kernel
_RESULTS = {Scope.ACCUMULATOR: 256, Scope.MMA_C: 128}  # elements that one instruction adds to
_BUFFERED = 2  # copies of fragments that a pipeline keeps
_SPILL_RAMP = 0.25
_WORD_BYTES = 4.0
_DEFAULT_SPEEDUP = 8.0  # of matrix units over lanes, for a device without a given peak


def tensor_latency_s(
    symbols: Symbols, device: GpuDevice, on: Collection[str] = HARDWARE_TERMS
) -> PerProgram:
    """Predicted seconds of N programs that accumulate in fragments."""
    return _OnTensorCores(symbols, device, on).seconds()


def matrix_peak(symbols: Symbols, device: GpuDevice) -> float:
    """Peak of the matrix units (operations/s) for types of operands and accumulator."""
    width = symbols["own_bytes"].max(axis=1)
    operands = {int(width[i]) for i, s in enumerate(symbols.scopes) if s in OPERAND_FRAGMENTS}
    accumulator = next(int(width[i]) for i, s in enumerate(symbols.scopes) if s in ACCUMULATORS)
    kinds = ("int8", "int32") if operands == {1} else ("float16", f"float{8 * accumulator}")
    return device.tensor_ops_per_s(*kinds) or _DEFAULT_SPEEDUP * device.peak_flops_per_s


class _OnTensorCores:
    """A kernel: fetch operands, load fragments, multiply, store results through shared memory."""

    def __init__(self, symbols: Symbols, device: GpuDevice, on: Collection[str]) -> None:
        self._s, self._device, self._on = symbols, device, on
        scopes = symbols.scopes
        self._main = next(i for i, scope in enumerate(scopes) if scope in ACCUMULATORS)
        self._fetches = [i for i, s in enumerate(scopes) if s == SHARED and i < self._main]
        self._results = [i for i in range(len(scopes)) if i > self._main]
        self._operands = [i for i, s in enumerate(scopes) if s in OPERAND_FRAGMENTS]
        self._threads = symbols["l1_para_info"][self._main]
        self._warps = np.maximum(self._threads / device.warp_size, 1)
        self._blocks = symbols["l2_para_info"][self._main]
        self._bytes = symbols["own_bytes"]
        self._requests = self._vectors()

    def seconds(self) -> PerProgram:
        """Seconds [program]: the slowest of multiprocessors, cache and memory."""
        device = self._device
        rounds = self._blocks / device.num_sms
        if "wave_c" in self._on:
            rounds = np.ceil(rounds)
        # Resident blocks take turns: each block's waiting is hidden by the work of the others.
        at_once = np.maximum(np.minimum(self._resident(), rounds), 1)
        cycles = self._norm(self._busy_cycles(), self._alone_cycles() / at_once)
        on_chip = rounds * cycles * self._slowdown() / device.clock_hz
        return self._norm(on_chip, *self._memory_s()) + _OVERHEAD_S

    def _norm(self, *parts: PerProgram) -> PerProgram:
        total = sum((part**_OVERLAP for part in parts), np.zeros_like(self._threads))
        return total ** (1 / _OVERLAP)

    def _product_cycles(self) -> PerProgram:
        """Cycles of a multiprocessor's matrix units for one block."""
        device = self._device
        work = self._s["l2_comp_count"][self._main] / self._blocks
        return work * device.num_sms * device.clock_hz / matrix_peak(self._s, device)

    def _busy_cycles(self) -> PerProgram:
        s, device = self._s, self._device
        if "issue_c" not in self._on:
            return self._product_cycles()
        moved = s["shared_loads"] * self._bytes * self._threads
        feeding = moved[self._operands].sum(axis=0) / _SHARED_BYTES_PER_CYCLE
        requests = self._requests
        each = _COPY_INSTRUCTIONS if s.copies_ahead else _FETCH_INSTRUCTIONS
        issued = (requests * each).sum(axis=0) * self._warps
        issued = issued / device.schedulers_per_sm
        busy = [self._product_cycles(), feeding, issued]
        if "transaction_m" in self._on:
            busy.append((requests * s["lines"]).sum(axis=0) * self._warps)
        return self._norm(*busy)

    def _vectors(self) -> Float[np.ndarray, "statement program"]:
        """Vectors [statement, program] of a thread between global and shared memory."""
        s = self._s
        elements = list(s["issued"] / (self._blocks * self._threads))
        elements[self._main] = np.zeros_like(elements[self._main])
        for row in self._results:
            on_warps = s["issued"][row] == 0
            elements[row] = np.where(on_warps, 0, s["thread_iterations"][row])
        return np.stack(elements) / np.maximum(s["vector"], 1)

    def _alone_cycles(self) -> PerProgram:
        """Cycles that a block waits when alone on its multiprocessor."""
        ahead = self._s.copies_ahead
        # A warp feeds one scheduler's matrix unit: a block with few warps leaves the others idle.
        units = np.minimum(self._warps, self._device.schedulers_per_sm)
        products = self._product_cycles() * self._device.schedulers_per_sm / units
        if "latency_c" not in self._on:
            return products
        copies = self._passes(self._fetches) * _STEP_CYCLES + self._waits()
        loads = self._passes(self._operands) * _PRODUCT_CYCLES
        if not ahead:
            return copies + loads + products
        return _STEP_CYCLES + np.maximum(np.maximum(copies / ahead, loads), products)

    def _waits(self) -> PerProgram:
        """Cycles that a thread waits for its loads."""
        loads = self._requests[self._fetches]
        written = np.maximum(self._s["unroll"][self._main], _WRITTEN_OUT)
        in_a_row = (loads <= written * self._passes(self._fetches)) | bool(self._s.copies_ahead)
        return (loads * np.where(in_a_row, _LOAD_CYCLES, _ROLLED_LOAD_CYCLES)).sum(axis=0)

    def _passes(self, statements: list[int]) -> PerProgram:
        return self._s["passes"][statements].max(axis=0)

    def _registers(self) -> PerProgram:
        """Registers of one thread; ``_HOLDERS`` of the symbols has the holders of an element."""
        operands = (self._s["l0_mem_alloc"] * self._bytes)[self._operands].sum(axis=0)
        if self._s.copies_ahead:
            more = self._passes(self._operands) > self._passes(self._fetches)
            operands = operands * np.where(more, _BUFFERED, 1)
        results = (self._s["accumulators"] * self._bytes)[self._main]
        return (operands + results) / _WORD_BYTES + _BASE_REGISTERS

    def _register_limit(self) -> PerProgram:
        device = self._device
        return np.minimum(
            device.max_registers_per_thread, device.registers_per_block / self._threads
        )

    def _resident(self) -> PerProgram:
        device = self._device
        if "occupancy_m" not in self._on:
            return np.ones_like(self._threads)
        used = np.minimum(self._registers(), self._register_limit()) * self._threads
        limit = np.minimum(
            device.max_threads_per_sm / self._threads,
            device.shared_bytes_per_sm / np.maximum(self._s.block_bytes(), 1),
        )
        limit = np.minimum(limit, device.registers_per_sm / used)
        found = np.minimum(device.max_blocks_per_sm, np.floor(limit))
        return np.maximum(found, 1)

    def _slowdown(self) -> PerProgram:
        """Slow-down of fragments that do not stay in registers."""
        out = np.ones_like(self._threads)
        if "spill_m" in self._on:
            over = self._registers() / self._register_limit() - 1
            out = out + _SPILL * np.clip(over / _SPILL_RAMP, 0, 1)
        if "rolled_c" not in self._on:
            return out
        warp, results = self._device.warp_size, _RESULTS[Scope(self._s.scopes[self._main])]
        tiles = self._s["accumulators"][self._main] * warp / results
        limit = np.maximum(self._s["unroll"][self._main], _UNROLL_LIMIT)
        return out * (1 + _ROLLED / (1 + (limit / tiles) ** 8))

    def _memory_s(self) -> tuple[PerProgram, PerProgram]:
        """Seconds of the cache, which serves every fetch, and of the memory."""
        s, bandwidth = self._s, self._device.dram_bytes_per_s
        moved = (s["issued"] * s["global_bytes"]).sum(axis=0)
        unique = (s["unique"] * s["global_bytes"]).sum(axis=0)
        if "cache_m" not in self._on:
            return moved / bandwidth, unique / bandwidth
        return moved / (_CACHED_BANDWIDTH * bandwidth), unique / bandwidth
