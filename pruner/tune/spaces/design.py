"""MetaSchedule's design spaces of a module, and decision vectors of their traces."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pruner.errors import PrunerError, UnsupportedProgram, lines_of
from pruner.program.tir.trace import TILES
from pruner.program.tir.verify import STATIC_BYTES
from pruner.tune.kinds import is_cuda, is_pocl
from pruner.tune.spaces.batched.prim_func import blocks_in
from pruner.tune.tvm_import import holds, inside, load_intrinsics, load_tvm

SAMPLING = (*TILES, "SampleCategorical", "SampleComputeLocation")
logger = logging.getLogger(__name__)
_logged: set[str] = set()  # faults of TVM


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A postprocessed schedule; ``module``: before ``RewriteTensorize`` hides loops."""

    schedule: Any
    module: Any


@dataclass(frozen=True, eq=False)
class DesignSpace:
    """A trace of a task with the context that finishes its schedules."""

    module: Any
    target: Any
    trace: Any
    context: Any  # TuneContext: its postprocessors and mutators are bound to it

    @cached_property
    def sampling(self) -> list[Any]:
        """List the sampling instructions; raise `UnsupportedProgram` for an unknown kind."""
        found = [inst for inst in self.trace.insts if inst.kind.name.startswith("Sample")]
        strange = sorted({inst.kind.name for inst in found} - set(SAMPLING))
        if strange:
            raise UnsupportedProgram("unknown-sampling", ", ".join(strange))
        return found

    @cached_property
    def widths(self) -> list[int]:
        """List the number of slots of each sampling instruction."""
        return [len(i.outputs) if i.kind.name in TILES else 1 for i in self.sampling]

    @cached_property
    def _untouched(self) -> Any:
        """Create the schedule to copy; a copy costs a fiftieth."""
        return load_tvm().s_tir.Schedule(self.module, debug_mask=0, error_render_level="none")

    def replay(
        self, decisions: NDArray[np.int64] | None, seed: int, *, verify: bool = True
    ) -> Any | None:
        """Replay and postprocess a vector (None: TVM draws); None where TVM refuses.

        A fault of TVM (logged) costs the program; any other error is raised. ``verify=False``
        leaves ``VerifyGPUCode`` out.
        """
        found = self.finished(decisions, seed, verify=verify)
        return None if found is None else found.schedule

    def finished(
        self, decisions: NDArray[np.int64] | None, seed: int, *, verify: bool = True
    ) -> Finished | None:
        """Replay as :meth:`replay`, and add a module with readable loops."""
        chosen = {} if decisions is None else self.mapping(decisions)
        trace = load_tvm().s_tir.Trace(self.trace.insts, chosen)
        schedule = self._untouched.copy()
        # instructions without a decision in the trace are drawn from this seed
        schedule.seed(seed)
        module = None
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
            for postproc in self.context.space_generator.postprocs:
                kind = type(postproc).__name__
                # TVM judges GPU code before RewriteTensorize, so the loops of this module are also
                # the program that VerifyGPUCode accepted
                if kind == "RewriteTensorize" and _asks_for_instructions(self):
                    module = schedule.mod
                is_left_out = kind == "VerifyGPUCode" and not verify
                if not (is_left_out or postproc.apply(schedule)):
                    return None
        except (load_tvm().s_tir.ScheduleError, ValueError):
            # a condition of a primitive does not hold; a decision is out of range
            return None
        except RuntimeError as error:  # InternalError and its like: TVM fails, it does not refuse
            text = f"a program is left out: {type(error).__name__}: {refusal(error)}"
            if text not in _logged:
                _logged.add(text)
                logger.warning("fault of TVM: %s", text)
            return None
        return Finished(schedule, schedule.mod if module is None else module)

    def vector(self, trace: Any) -> NDArray[np.int64]:
        """Read the decisions of a finished trace, int64 [d]."""
        return vector_of(trace, len(self.sampling))  # postprocessors draw, too

    def mapping(self, decisions: NDArray[np.int64]) -> dict[Any, Any]:
        """Convert a vector to TVM's form: decisions by instruction."""
        out, start = {}, 0
        for inst, width in zip(self.sampling, self.widths, strict=True):
            values = [int(value) for value in decisions[start : start + width]]
            out[inst] = values if inst.kind.name in TILES else values[0]
            start += width
        return out


def vector_of(trace: Any, most: int | None = None) -> NDArray[np.int64]:
    """Read the decisions of a trace in order, of its first `most` samplings."""
    found = [i for i in trace.insts if i.kind.name.startswith("Sample") and i in trace.decisions]
    values: list[int] = []
    for inst in found[:most]:
        decision = trace.decisions[inst]
        values.extend([int(decision)] if isinstance(decision, int) else map(int, decision))
    return np.array(values, np.int64)


def design_spaces(module: Any, target: Any) -> list[DesignSpace]:
    """List the design spaces of a module; raise `PrunerError` where there are none.

    On tensor cores MetaSchedule offers ``wmma`` alone, since its ``mma`` rule finds the block
    already replaced: it is run separately here. Spaces of ordinary lanes are added, too: they win
    where tiles are mostly padding.
    """
    _check_loops(module, target)
    limited = _static_target(target)
    _, found = _default(module, limited)
    if not any(map(_on_tensor_cores, found)):
        return found
    # tensor-core programs have dynamic shared memory: the target's full limit holds for these
    if limited is not target:
        _, found = _default(module, target)
    rules = load_tvm().meta_schedule.ScheduleRule.create("cuda-tensorcore")
    kept = [rule for number, rule in enumerate(rules) if number != _WMMA_RULE]
    number = int("".join(filter(str.isdigit, str(target.attrs["arch"]))))  # 90 of sm_90a
    if number >= _COPIES_AHEAD and _loops_of_fragments(found[0]) == _MMA_LOOPS:
        found += filter(_on_tensor_cores, _spaces(module, target, kept, keep=_can_finish))
    # lanes use static shared memory, which CUDA limits to 48 KiB on every device
    return found + _spaces(module, limited, _LANES)


def default_rules(module: Any, target: Any) -> tuple[str, Any]:
    """Find the name of TVM's default rules of a module, and the fitting target.

    Only tensor cores get its full shared memory, which is dynamic. Raises `PrunerError` for loops
    that no rule can schedule.
    """
    _check_loops(module, target)
    provide_rules(module, target)
    if not is_cuda(target):
        load_intrinsics(target)
        return _DEFAULT, target
    limited = _static_target(target)
    rules, found = _default(module, limited)
    return rules, target if any(map(_on_tensor_cores, found)) else limited


def drawn_spaces(context: Any) -> list[Any]:
    """Generate the design spaces of a context, as TVM's schedules.

    The rules draw a program of tiles, and TVM raises "not a stage pipeline" for some: then others
    are drawn, `_DRAWS` times at most. Any other error is raised at once.
    """
    for _ in range(_DRAWS - 1):
        try:
            return list(context.generate_design_space())
        except load_tvm().s_tir.ScheduleError as error:
            if "stage pipeline" not in str(error):
                raise
    # the last draw: its error, whatever it is, reaches the caller
    return list(context.generate_design_space())


def _default(module: Any, target: Any) -> tuple[str, list[DesignSpace]]:
    """Generate the default spaces, or fewer; raise `PrunerError` if TVM refuses all rules.

    On GPUs convolutions of at most 15 rows with an epilogue raise: lanes then. On CPUs a rule may
    meet a block that its primitives refuse: that rule is left out.
    """
    refused = _refusals()
    try:
        return _DEFAULT, _spaces(module, target, _DEFAULT)
    except refused as error:
        first = error
    choices: list[tuple[str, Any]] = [(_LANES, _LANES)] if is_cuda(target) else []
    if target.kind.name == "llvm":
        rules = list(load_tvm().meta_schedule.ScheduleRule.create("llvm"))
        choices = [(_DEFAULT, rules[:n] + rules[n + 1 :]) for n in range(len(rules))]
    for name, fewer in choices:
        with suppress(*refused):
            if found := _spaces(module, target, fewer):
                return name, found
    with refusals_in_a_line():
        raise first


@contextmanager
def refusals_in_a_line(advice: str = "") -> Iterator[None]:
    """Turn a refusal of TVM's rules into a `PrunerError`, which ends with an advice."""
    try:
        yield
    except _refusals() as error:
        what = "TVM's schedule rules refuse this function"
        raise PrunerError(f"{what}: {refusal(error)}{advice}") from error


def _refusals() -> tuple[type[Exception], ...]:
    return load_tvm().s_tir.ScheduleError, ValueError, RuntimeError


def refusal(error: Exception) -> str:
    """Return the last line of an error, where TVM gives its reason."""
    return lines_of(error)[-1].strip().removeprefix("Error message: ")


def _check_loops(module: Any, target: Any) -> None:
    """Refuse functions without steps, or with the threads of another kind of device."""
    for loop in _inside(module, load_tvm().tirx.For):
        if getattr(loop.extent, "value", None) == 0:
            raise PrunerError(f"its loop {loop.loop_var.name} has no steps, so nothing to tune")
        if loop.thread_binding is not None and target.kind.name == "llvm":
            raise PrunerError(
                f"its loop {loop.loop_var.name} is bound to {loop.thread_binding.thread_tag}, so "
                "the function is scheduled for a GPU already: give it without schedule, or a "
                "target= of a GPU"
            )


def _static_target(target: Any) -> Any:
    """Limit a target's shared memory to 48 KiB, the static maximum."""
    attributes = json.loads(str(target))
    if attributes.get(_SHARED_BYTES, 0) <= STATIC_BYTES:
        return target
    return load_tvm().tvm.target.Target({**attributes, _SHARED_BYTES: STATIC_BYTES})


_DEFAULT, _LANES = "from-target", "cuda"  # TVM's names of rules
_DRAWS = 16  # of 14x14 images and 16 channels half of the draws raise
_MMA_LOOPS = 3  # the rule takes no batches
_COPIES_AHEAD = 80  # sm_80 has asynchronous copies: cp.async of the PTX ISA
_WMMA_RULE = 1  # its place in DefaultCUDATensorCore of schedule_rule.cc
_SHARED_BYTES = "max_shared_memory_per_block"


def _spaces(
    module: Any, target: Any, rules: Any, keep: Callable[[Any], bool] = lambda _: True
) -> list[DesignSpace]:
    """Generate spaces by rules, with postprocessors of the same kind."""
    ms = load_tvm().meta_schedule
    load_intrinsics(target)
    provide_rules(module, target)
    kind = rules if isinstance(rules, str) else _DEFAULT
    named = rules_of(rules, target) if isinstance(rules, str) else rules
    generator = ms.space_generator.PostOrderApply(
        sch_rules=named, postprocs=kind, mutator_probs=kind
    )
    # the rules draw while they probe tiles: a fixed seed gives every process the same spaces
    context = ms.TuneContext(
        mod=module, target=target, space_generator=generator, num_threads=1, rand_state=1
    )
    schedules = list[Any]()
    with nullcontext() if isinstance(rules, str) else suppress(*_refusals()):
        # the rule for `mma` raises where its tiles do not fit, as with an odd number of fragments
        schedules = drawn_spaces(context)
    return [DesignSpace(module, target, s.trace, context) for s in schedules if keep(s)]


def _on_tensor_cores(design: DesignSpace) -> bool:
    # spaces for CPUs request instructions by the same annotation (VNNI, AVX-512)
    return is_cuda(design.target) and _asks_for_instructions(design)


def _asks_for_instructions(design: DesignSpace) -> bool:
    key = "meta_schedule.auto_tensorize"
    found = (i.attrs[0] for i in design.trace.insts if i.kind.name == "Annotate")
    return any(str(name) == key for name in found)


def _loops_of_fragments(design: DesignSpace) -> int:
    """Count the loops around the multiplying instruction, before they are tiled."""
    kinds = [str(inst.kind.name) for inst in design.trace.insts]
    # the rule splits fragments off, blockizes them, and then fetches the loops that remain outside
    loops = kinds.index("GetLoops", kinds.index("Blockize"))
    return len(design.trace.insts[loops].outputs)


POCL_STEPS = (0, 16, 32, 64)  # steps of a loop that a program for PoCL may write out
_RULE, _NO_RULE = "schedule_rule", "None"  # an annotation of blocks; its value for "no rule"


def provide_rules(module: Any, target: Any) -> None:
    """Register a default for rules that blocks require and TVM 0.27 lacks."""
    ffi, blocks = load_tvm().ffi, _inside(module, load_tvm().s_tir.SBlock)
    for rule in {str(block.annotations.get(_RULE, _NO_RULE)) for block in blocks} - {_NO_RULE}:
        names = [f"s_tir.meta_schedule.{key}.{rule}" for key in target.keys]  # where TVM looks
        if all(ffi.get_global_func(name, allow_missing=True) is None for name in names):
            # PostOrderApply takes the first key of the target that has the rule
            ffi.register_global_func(names[0], _as_any_block)


def _inside(module: Any, kind: Any) -> list[Any]:
    return [node for _, one in module.functions_items() for node in inside(one.body, kind)]


def _as_any_block(schedule: Any, block: Any) -> list[Any]:
    """Apply as a rule: the default rules schedule the block."""
    schedule.unannotate(block, _RULE)
    return [schedule]


def rules_of(name: str, target: Any) -> Any:
    """Create TVM's rules of a name; PoCL gets short unrolled loops.

    LLVM takes up to minutes for PoCL's bodies of thousands of lines, which also run slower (matmul
    128x128x128, 512 steps: 17 s and 10 ms; 64 steps: 1.4 s and .65 ms).
    """
    if not is_pocl(target):
        return name
    rule = load_tvm().meta_schedule.schedule_rule.ParallelizeVectorizeUnroll
    short = rule(max_jobs_per_core=-1, max_vectorize_extent=-1, unroll_max_steps=list(POCL_STEPS))
    found = load_tvm().meta_schedule.ScheduleRule.create("cuda")  # OpenCL has the same rules
    return [short if isinstance(one, rule) else one for one in found]


def _can_finish(schedule: Any) -> bool:
    """Check whether TVM makes programs of a ``mma`` space, by its copies.

    It fails on vectors that would step (``VerifyGPUCode``), results that are added to another
    tensor on the way out (``LowerAutoCopy``), and padded results, whose guard names loops inside.
    """
    # the blocks of ReadAt and WriteAt
    copies = blocks_in(schedule.mod["main"].body, lambda block: "auto_copy" in block.annotations)
    for one in copies:
        # a copy into shared memory brings operands; any other copy stores results
        is_operand = str(one.writes[0].source.scope()).startswith("shared")
        if not (_reads_rows(one) if is_operand else _writes_whole(one)):
            return False
    return True


def _reads_rows(block: Any) -> bool:
    """Check that shared memory's neighbours are global memory's, padding aside."""
    stmt, inner = block.body, None
    # LowerAutoCopy vectorises the innermost loop, which must move the last index only
    while type(stmt).__name__ == "For":
        stmt, inner = stmt.body, stmt.loop_var
    loads = inside(stmt.value, load_tvm().tvm.ir.TensorLoad)
    return all(
        holds(load.indices[-1], inner) and not any(holds(i, inner) for i in load.indices[:-1])
        for load in loads
    )


def _writes_whole(block: Any) -> bool:
    """Check that a copy stores all fragments and reads nothing else."""
    (written, *_), reads = block.writes, block.reads
    shapes = [[int(extent) for extent in region.source.shape] for region in (written, reads[0])]
    # a second read is an operand of an epilogue; fewer elements are the cut of a padded result
    return len(reads) == 1 and prod(shapes[0]) == prod(shapes[1])
