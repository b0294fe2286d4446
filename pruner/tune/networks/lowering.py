"""Lower an imported network to functions that can be tuned.

This is the only lowering of the project. Records are looked up by the structural hash of a
function. So tuned and built functions must come from the same passes in the same order, each run
once: lowering a lowered module changes hashes, and every record is silently lost.
:class:`NetworkFormat` has all that may differ between runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from pruner.errors import PrunerError
from pruner.tune.kinds import is_gpu
from pruner.tune.networks.lowered_parts import LoweredParts
from pruner.tune.networks.rewrites.constant_folding import (
    fold_constants,
    fold_views,
    without_copies,
)
from pruner.tune.networks.rewrites.convolutions import one_row, subpixel_convolutions
from pruner.tune.networks.rewrites.layout import (
    Layout,
    Precision,
    channels_last,
    mixed,
    without_clips,
)
from pruner.tune.networks.rewrites.operators import operator_name
from pruner.tune.networks.rewrites.packing import pack_weights, pad_classifier, tensors_of
from pruner.tune.networks.rewrites.sorting import merged_sorts
from pruner.tune.networks.variants.search import with_variants
from pruner.tune.tvm_import import inside, load_tvm, map_functions

REDUCTION = 2  # IterVar.CommReduce
_LARGEST = 2**31 - 1  # elements that 32-bit indices reach
_LOWERED = "pruner_lowered"  # attribute of a module; front ends make TIR functions of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFormat:
    """The layout and the precision of a network.

    ``variants``: the steps of algebraic variants by the class of regions to which they apply
    (:mod:`pruner.tune.networks.variants.search`).
    """

    layout: Layout = "NCHW"
    precision: Precision = "float32"
    variants: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def channels_last(self) -> bool:
        """True if images and weights of convolutions have channels last."""
        return self.layout == "NHWC"

    @property
    def halves(self) -> bool:
        """True if products take float16 numbers."""
        return self.precision == "float16"

    @property
    def plain(self) -> NetworkFormat:
        """Return this format in the layout of front ends, without variants."""
        return replace(self, layout="NCHW", variants={})

    def __str__(self) -> str:
        """Format layout, precision, and how many classes have a variant."""
        variants = f", {len(self.variants)} variants" if self.variants else ""
        return f"{self.layout} {self.precision}{variants}"


def lower(
    module: Any, target: Any, form: NetworkFormat | None = None, known: LoweredParts | None = None
) -> Any:
    """Lower a Relax module to unscheduled TIR functions called by ``main``.

    Its parameters must be bound; functions are fused. ``known``: results of earlier lowerings for
    the target, which do not change the tasks.

    On CPUs constant weights are packed (:mod:`pruner.tune.networks.rewrites.packing`), and channels
    of a classifier are filled up so that they can be packed. For GPUs indices have 32 bits: TVM
    cannot write vectors of 64-bit indices, which permuted rows of ``mma`` programs need. Raises
    `ValueError`: the module is lowered already. Raises `PrunerError`: TVM cannot lower one of its
    operators.
    """
    relax = load_tvm().relax
    if module.attrs is not None and _LOWERED in module.attrs:
        raise ValueError("this module is lowered already: it may be lowered once only")
    passes, backend, known = relax.transform, relax.backend, known or LoweredParts()
    steps = [
        backend.DispatchSampling(),
        backend.DispatchSortScan(),
        passes.DecomposeOpsForInference(),
        passes.CanonicalizeBindings(),
        known.legalize(),
        passes.AnnotateTIROpPattern(),
        # folds calls of TIR functions, so it follows LegalizeOps
        passes.FoldConstant(),
        passes.FuseOps(),
        passes.FuseTIR(),
        passes.DeadCodeElimination(),
    ]
    on_cpu = target.kind.name == "llvm"
    simple = formed(module, form or NetworkFormat())
    with target:
        lowered = merged_sorts(pad_classifier(simple)) if on_cpu else simple
        lowered = fold_views(lowered)
        for step in steps:
            lowered = _stepped(step, lowered)
        if on_cpu:
            lowered = pack_weights(lowered, known)
        simple = _simplified(lowered, known).with_attr(_LOWERED, True)
        return narrowed(simple, known) if is_gpu(target) else simple


def lower_somehow(
    module: Any, target: Any, form: NetworkFormat, known: LoweredParts | None = None
) -> tuple[Any, NetworkFormat, str | None]:
    """Lower a Relax module in the given form, else without variants, else as imported.

    Returns the lowered module, its form, and why it is not the given one. Raises `PrunerError`: TVM
    cannot lower it.
    """
    forms = [form, *([replace(form, variants={})] if form.variants else [])]
    forms += [form.plain] if form.channels_last else []
    reason = None
    for one in forms[:-1]:
        try:
            return lower(module, target, one, known), one, reason
        except Exception as error:  # passes raise kinds of their own
            reason = reason or first_line(error)
    return lower(module, target, forms[-1], known), forms[-1], reason


def first_line(error: BaseException) -> str:
    """Return the first line of a compiler's error, with its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, PrunerError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def _stepped(step: Any, module: Any) -> Any:
    """Run a pass; name the operator on which it fails."""
    try:
        return step(module)
    except Exception as error:
        raise PrunerError(
            f"TVM cannot lower {_culprit(step, module)} ({step.info.name}: {first_line(error)}); "
            "write that part with other operators, or leave it out of the network"
        ) from error


def _culprit(step: Any, module: Any) -> str:
    """Describe the first operator on which a pass fails when it is alone."""
    relax = load_tvm().relax
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            name = operator_name(binding.value)
            new = {
                hash(var): relax.Var(f"x{number}", var.ty)
                for number, var in enumerate(relax.analysis.free_vars(binding.value))
            }
            if not name or not new:
                continue
            mapped = load_tvm().ffi.structural_map(
                binding.value, (relax.Var, lambda var, new=new: new.get(hash(var), var))
            )
            try:
                builder = relax.BlockBuilder()
                with builder.function("main", list(new.values())):
                    builder.emit_func_output(builder.emit(mapped))
                step(builder.get())
            except Exception:
                return f"{name} of {', '.join(str(var.ty) for var in new.values())}"
    return "it"


def formed(module: Any, form: NetworkFormat) -> Any:
    """Fold constants and apply the form, still in Relax's operators."""
    module = without_copies(module)  # first: copies hide the patterns of all rewrites
    # before constants are folded: norms of signals are folded like norms of images
    module = fold_constants(one_row(without_clips(module, integers_only=True)))
    if form.channels_last:
        module = channels_last(module)
    # after the layout: the rewritten convolutions are made in the final one
    module = with_variants(subpixel_convolutions(module), form.variants)
    return mixed(module) if form.halves else module


def _simplified(module: Any, known: LoweredParts) -> Any:
    """Simplify indices, such as the quotient v // 512 of reshapes.

    For v < 512 it is 0, which affine engines can use; they refuse the quotient itself. Functions
    are left unchanged where a sum would lose a loop of one iteration (a batch of one): MetaSchedule
    tiles only blocks that are bound to loops alone, so a convolution would have no tile sizes.
    """
    tvm, simplify = load_tvm().tvm, load_tvm().s_tir.transform.StmtSimplify()

    def simplified(function: Any) -> Any:
        simple = simplify(tvm.IRModule({"main": function}))["main"]
        return function if _lost_loops(simple) else simple

    return map_functions(module, lambda one: known.of("simplify", one, simplified))


def narrowed(module: Any, known: LoweredParts | None = None) -> Any:
    """Convert indices to 32 bits, except for large tensors and int64 data.

    Tensors between the parts of a function count, too.
    """
    tvm, change = load_tvm().tvm, load_tvm().tirx.transform.ForceNarrowIndexToInt32()
    parts = known or LoweredParts()

    def narrow(function: Any) -> Any:
        if not _is_large(function):
            with suppress(Exception):  # tvm.error.InternalError: the pass refuses int64 data
                return change(tvm.IRModule({"main": function}))["main"]
        return function

    return map_functions(module, lambda one: parts.of("narrow", one, narrow))


def _is_large(function: Any) -> bool:
    tensors = tensors_of(function)
    for block in inside(function.body, load_tvm().s_tir.SBlock):
        tensors.extend(block.alloc_buffers)
    return any(prod(int(extent) for extent in tensor.shape) > _LARGEST for tensor in tensors)


def _lost_loops(function: Any) -> bool:
    tirx, blocks = load_tvm().tirx, inside(function.body, load_tvm().s_tir.SBlockRealize)
    return any(
        not isinstance(value, tirx.Var)
        for one in blocks
        if any(int(axis.iter_type) == REDUCTION for axis in one.block.iter_vars)
        for value in one.iter_values
    )
