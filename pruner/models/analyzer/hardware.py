"""The analyzer with the physics of measured programs; nothing is learned.

Where the paper's form fails on tuning logs, and the term for it:

* A tile larger than the registers a thread can have (``registers / threads of a block``; where the
  compiler lacks the block's size, of the largest) makes programs 10 to 60 times slower, far more
  than ``min(m / S1, 1)``: *spill*.
* A tile stays in registers only if every index into it is a constant, so all its spatial loops must
  be unrolled; an outer one left rolled costs a factor: *rolled*.
* Work is issued by a multiprocessor, so shared loads, loop overhead and the staging of operands
  count in addition to multiply-adds: *issue*.
* Latency is hidden by the blocks that are resident together, which registers, shared memory (S3)
  and threads limit: *occupancy*.
* A statement in a grid of few blocks, a kernel of its own, waits for each of its loads: *latency*.
* Whole blocks on whole multiprocessors: *wave*; short rows waste transactions (S7): *transaction*;
  repeated reads come from caches: *cache*.
* Off by default: latency counts in whole waves of resident blocks (``whole_waves``).

Per multiprocessor and block: ``((issue cycles)^p + (latency / resident blocks)^p)^(1/p)``, times
blocks per multiprocessor, plus global bytes over the bandwidth (Eq. 1's sum).
"""

from collections.abc import Collection

import numpy as np
from jaxtyping import Float

from pruner.features.symbols.symbol_table import PerProgram, Symbols
from pruner.models.analyzer.constants import HARDWARE_TERMS, AnalyzerConstants
from pruner.models.analyzer.tensor import tensor_latency_s
from pruner.program.device import GpuDevice
from pruner.program.nests import SHARED

_WORD_BYTES = 4.0  # one register, and the element size that the rates were fitted to
_SECTOR_BYTES = 32.0  # the smallest transfer between cache and memory
_WIDEST_BYTES = 16.0  # of one load or store
_LANES = (1, 2, 4, 8, 16)  # of vectors that an instruction loads
_LOAD_LANES = 32
_SPILL_RAMP = 0.25  # from the first spilled register to the whole slow-down, share of the limit
_OVERHEAD_S = 2e-6  # launch of a kernel
_LOAD_CYCLES = 150.0  # of a load that the next one waits for


def hardware_latency_s(
    symbols: Symbols,
    device: GpuDevice,
    constants: AnalyzerConstants,
    on: Collection[str] = HARDWARE_TERMS,
) -> Float[np.ndarray, " program"]:
    """Predicted seconds of N programs."""
    if symbols.on_tensor_cores:
        return tensor_latency_s(symbols, device, on)
    if SHARED not in symbols.scopes:
        return _direct_s(symbols, device, constants, on)
    return _Staged(symbols, device, constants, on).seconds()


class _Staged:
    """A kernel whose blocks stage operands in shared memory, with barriers."""

    def __init__(
        self,
        symbols: Symbols,
        device: GpuDevice,
        constants: AnalyzerConstants,
        on: Collection[str],
    ) -> None:
        self._s, self._device, self._on = symbols, device, on
        self._c = constants.rates
        self._staging = [i for i, scope in enumerate(symbols.scopes) if scope == SHARED]
        self._main = [i for i, loads in enumerate(symbols.reductions) if loads]
        self._threads = symbols["l1_para_info"][-1]
        self._blocks = symbols["l2_para_info"][-1]
        self._lanes = np.ceil(self._threads / device.warp_size) * device.warp_size
        results = symbols["accumulators"][self._main].max(axis=0)
        operands = symbols["l0_mem_alloc"][self._main].max(axis=0) - results
        # Results live through the whole reduction, operands only until their use.
        self._tile = results + np.minimum(operands, constants.rates.live_operands)
        words = symbols["own_bytes"][self._main].max(axis=0) / _WORD_BYTES
        self._tile = self._tile * np.maximum(words, 1)  # smaller scalars take a whole register
        self._passes = symbols["passes"][self._staging].max(axis=0)

    def seconds(self) -> PerProgram:
        arithmetic = self._arithmetic()
        staging, waited = self._stage()
        instructions = arithmetic + staging + self._write()
        issue = instructions * self._lanes / self._device.float32_lanes_per_sm
        per_sm = self._blocks / self._device.num_sms
        cycles = issue
        if "latency_c" in self._on:
            c = self._c
            alone = self._passes * c.step_cycles + waited * c.fetch_cycles
            alone = alone + instructions * c.chain_cycles
            # No more blocks hide latency than the grid has for a multiprocessor.
            resident = np.maximum(np.minimum(self._resident(), np.maximum(per_sm, 1)), 1)
            waited_for = alone / resident
            if c.whole_waves and "wave_c" in self._on:
                own = np.ceil(per_sm)
                waves = np.ceil(own / np.maximum(self._resident(), 1))
                waited_for += c.whole_waves * (alone * waves / own - waited_for)
            cycles = (issue**c.overlap + waited_for**c.overlap) ** (1 / c.overlap)
        rounds = np.ceil(per_sm) if "wave_c" in self._on else per_sm
        cycles = rounds * cycles + self._small_grids()
        # Added, not overlapped: Eq. 1 of the paper sums compute and memory time.
        return cycles / self._device.clock_hz + self._memory_s() + _OVERHEAD_S

    def _small_grids(self) -> PerProgram:
        """Cycles of statements whose own grid has fewer blocks than the device multiprocessors.

        Such a statement runs in a kernel of its own, as the row sums of a softmax, and its threads
        load one element after another, each lane from a row of its own.
        """
        s = self._s
        if "latency_c" not in self._on:
            return np.zeros_like(self._threads)
        blocks, threads = s["l2_para_info"], s["l1_para_info"]
        alone = (blocks < self._device.num_sms) & (blocks != self._blocks)
        waits = np.maximum(_LOAD_CYCLES, threads) * s["global_loads"]
        return np.where(alone, waits, 0).sum(axis=0)

    def _register_limit(self) -> PerProgram:
        device = self._device
        block = device.compiled_threads_per_block
        # Where the compiler does not know the block it leaves registers for one of this size.
        lanes = self._lanes if block is None else np.full_like(self._lanes, block)
        return np.minimum(device.max_registers_per_thread, device.registers_per_block / lanes)

    def _resident(self) -> PerProgram:
        """Blocks [program] that a multiprocessor holds at once."""
        device = self._device
        limit = np.minimum(
            device.max_blocks_per_sm, np.floor(device.max_threads_per_sm / self._lanes)
        )
        if "occupancy_m" in self._on:
            shared = self._s.block_bytes()
            limit = np.minimum(limit, np.floor(device.shared_bytes_per_sm / shared))
            used = np.clip(self._tile + self._c.base_registers, 32, self._register_limit())
            limit = np.minimum(limit, np.floor(device.registers_per_sm / (used * self._lanes)))
        return np.maximum(limit, 1)

    def _arithmetic(self) -> PerProgram:
        s, c = self._s, self._c
        iterations = s["thread_iterations"][self._main].sum(axis=0)
        device = self._device  # which does not pack 16-bit floats in pairs
        half = (device.half_flops_per_s or 2 * device.peak_flops_per_s) / 2
        work = s["l0_comp_count"] * (1 + s["half_share"] * (device.peak_flops_per_s / half - 1))
        out = work[self._main].sum(axis=0) / 2 * c.multiply_add
        if "issue_c" in self._on:
            loads = s["shared_loads"][self._main].sum(axis=0)
            least = s["shared_loads_least"][self._main].sum(axis=0)
            ways = s["shared_cycles"][self._main].sum(axis=0) / np.maximum(loads, 1)
            kept = np.minimum(loads, least * c.kept_operands)
            # 32 lanes load from shared memory at a time, however many lanes multiply
            lanes = device.float32_lanes_per_sm / _LOAD_LANES
            out = out + kept * lanes * (c.shared_load + c.bank_conflict * (ways - 1))
            body = np.maximum(s["unroll"][self._main].max(axis=0), c.unrolled_body)
            out = out + iterations / np.minimum(iterations / self._passes, body) * c.loop
        return out * self._slowdown()

    def _slowdown(self) -> PerProgram:
        """Slow-down of a tile that does not stay in registers."""
        s, c = self._s, self._c
        out = np.ones_like(self._tile)
        if "spill_m" in self._on:
            reserved = 0 if self._device.scalar_registers else c.reserved_registers
            limit = np.maximum(self._register_limit() - reserved, 1)
            out = out + c.spill * np.clip((self._tile / limit - 1) / _SPILL_RAMP, 0, 1)
        if "rolled_c" in self._on:
            body = np.maximum(s["spatial_body"][self._main].max(axis=0), 1)
            limit = np.full_like(body, c.unroll_limit)
            if self._device.unroll_follows_pragma:
                limit = np.maximum(s["unroll"][self._main].max(axis=0), limit)
            # A steep but smooth step, so that calibration can move the limit.
            out = out + c.rolled / (1 + (limit / body) ** 8)
        return out

    def _stage(self) -> tuple[PerProgram, PerProgram]:
        """Per thread: instructions that stage operands, and loads waited for in turn."""
        s, c = self._s, self._c
        elements = s["issued"][self._staging] / (self._blocks * self._threads)
        vector, size = s["vector"][self._staging], s["global_bytes"][self._staging]
        lanes = np.clip(vector, 1, _WIDEST_BYTES / size)
        cost = c.stage / lanes**c.vector_saving
        if "transaction_m" in self._on:
            sector = _SECTOR_BYTES / size
            rows = sector / np.clip(s["l2_trans_dim"][self._staging], 1, sector)
            loaded = np.isin(vector, _LANES) & (vector * size <= _WIDEST_BYTES)
            # No instruction loads 3 or 5 elements: the compiler splits such vectors into scalars.
            odd = np.where(loaded, 1, np.minimum(vector, 16))
            cost = cost * (1 + c.short_rows * (rows - 1) + c.odd_vectors * (odd - 1))
        waited = np.maximum(elements / lanes, self._passes)
        issue = elements * cost if "issue_c" in self._on else elements
        return issue.sum(axis=0), waited.sum(axis=0)

    def _write(self) -> PerProgram:
        """Instructions per thread that write the results."""
        s, c = self._s, self._c
        # No epilogue: the write is part of the reduction's own statement.
        if self._main and self._main[-1] == len(s.scopes) - 1:
            return np.zeros_like(self._threads)
        results = s["thread_iterations"][-1]
        if "transaction_m" not in self._on:
            return results * c.write
        warp, sector = float(self._device.warp_size), _SECTOR_BYTES / s["global_bytes"][-1]
        lanes = np.minimum(s["lane_extent"][-1], warp)
        span = np.maximum(lanes * np.minimum(s["lane_step"][-1], sector) / sector, 1)
        requests = np.maximum(warp / lanes * span / (warp / sector), 1)
        return results * c.write * (1 + c.scattered_write * (requests - 1))

    def _memory_s(self) -> PerProgram:
        s, c = self._s, self._c
        moved, unique = s["issued"], s["unique"]
        if "cache_m" in self._on:
            repeated = np.maximum(moved - unique, 0)
            moved = np.minimum(unique, moved) + c.repeated_traffic * repeated
        if "transaction_m" in self._on:
            run = np.maximum(s["l2_trans_dim"], 1) * s["global_bytes"] / _WORD_BYTES
            moved = moved * (run + c.row_elements) / run
        bytes_ = (moved * s["global_bytes"]).sum(axis=0)
        return c.traffic * bytes_ / self._device.dram_bytes_per_s


def _direct_s(
    s: Symbols, device: GpuDevice, constants: AnalyzerConstants, on: Collection[str]
) -> PerProgram:
    """Kernels without a shared stage: bandwidth, resident threads, block launch."""
    c = constants.rates
    threads, blocks = s["l1_para_info"], s["l2_para_info"]
    lanes = np.ceil(threads / device.warp_size) * device.warp_size
    resident = np.minimum(device.max_blocks_per_sm, np.floor(device.max_threads_per_sm / lanes))
    busy = np.minimum(1, resident * threads / device.max_threads_per_sm)
    seconds = s["global_bytes"] * s["unique"] / device.dram_bytes_per_s
    if "occupancy_m" in on:
        seconds = seconds * (1 + c.idle_threads) * (busy + c.idle_threads) / busy
    if "latency_c" in on:
        seconds = seconds + blocks * c.block_launch_ns * 1e-9 / device.num_sms
    if "wave_c" in on:
        waves = blocks / (device.num_sms * resident)
        seconds = seconds * np.maximum(1, np.ceil(waves) / waves)
    return seconds.sum(axis=0)
