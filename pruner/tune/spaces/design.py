"""MetaSchedule's design spaces of a module, and decision vectors of their traces.

A vector holds all sampling decisions of a trace in order: the factors of ``sample_perfect_tile``,
the index of ``sample_categorical``, the location index of ``sample_compute_location``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import UnsupportedProgram
from pruner.tune.tvm_import import load_tvm

SAMPLING = ("SamplePerfectTile", "SampleCategorical", "SampleComputeLocation")


@dataclass(frozen=True, slots=True, eq=False)
class DesignSpace:
    """One trace of one task with what finishes its schedules."""

    module: Any
    target: Any
    trace: Any
    context: Any  # TuneContext: its postprocessors and mutators are bound to it

    @property
    def sampling(self) -> list[Any]:
        """The sampling instructions in order. Raises `UnsupportedProgram` for a strange one."""
        found = [inst for inst in self.trace.insts if inst.kind.name.startswith("Sample")]
        strange = sorted({inst.kind.name for inst in found} - set(SAMPLING))
        if strange:
            raise UnsupportedProgram("unknown-sampling", ", ".join(strange))
        return found

    @property
    def widths(self) -> list[int]:
        """How many slots each sampling instruction takes."""
        return [len(i.outputs) if i.kind.name == SAMPLING[0] else 1 for i in self.sampling]

    def replay(
        self, decisions: NDArray[np.int64] | None, seed: int, *, verify: bool = True
    ) -> Any | None:
        """The schedule of a vector (None: TVM draws), postprocessed; None where TVM refuses.

        ``verify=False`` leaves ``VerifyGPUCode`` out, for programs known to pass it.
        """
        chosen = {} if decisions is None else self.mapping(decisions)
        s_tir = load_tvm().s_tir
        return self.finish(s_tir.Trace(self.trace.insts, chosen), seed, verify=verify)

    def finish(self, trace: Any, seed: int, *, verify: bool = True) -> Any | None:
        """Apply a whole trace and the postprocessors; None where TVM refuses."""
        schedule = load_tvm().s_tir.Schedule(
            self.module, seed=seed, debug_mask=0, error_render_level="none"
        )
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            kept = all(p.apply(schedule) for p in self._postprocs(verify))
        except Exception:  # TVM raises many kinds for decisions that it cannot apply
            return None
        return schedule if kept else None

    def _postprocs(self, verify: bool) -> list[Any]:
        found = self.context.space_generator.postprocs
        return [p for p in found if verify or type(p).__name__ != "VerifyGPUCode"]

    def vector(self, trace: Any) -> NDArray[np.int64]:
        """The decisions that a finished trace took."""
        values: list[int] = []
        found = [inst for inst in trace.insts if inst.kind.name.startswith("Sample")]
        for inst in found[: len(self.sampling)]:
            decision = trace.decisions[inst]
            values.extend([int(decision)] if isinstance(decision, int) else map(int, decision))
        return np.array(values, np.int64)

    def mapping(self, decisions: NDArray[np.int64]) -> dict[Any, Any]:
        """A vector as TVM wants it: decisions by instruction."""
        out, start = {}, 0
        for inst, width in zip(self.sampling, self.widths, strict=True):
            values = [int(value) for value in decisions[start : start + width]]
            out[inst] = values if inst.kind.name == SAMPLING[0] else values[0]
            start += width
        return out


def design_spaces(module: Any, target: Any) -> list[DesignSpace]:
    """All design spaces that MetaSchedule's default rules make for a module."""
    ms = load_tvm().meta_schedule
    context = ms.TuneContext(
        mod=module, target=target, space_generator="post-order-apply", num_threads=1, rand_state=1
    )
    return [
        DesignSpace(module, target, schedule.trace, context)
        for schedule in context.generate_design_space()
    ]
