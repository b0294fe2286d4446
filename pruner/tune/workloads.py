"""Workloads to tune: named operators, TVMScript files, and lists, as TIR modules."""

import importlib.util
import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError, lines_of
from pruner.program.dag.operators import task_options as operators
from pruner.tune.tvm_import import load_tvm, quick_stacks

logger = logging.getLogger(__name__)

# names of older TVMs' scripts that TVM 0.27 has under another name, and those that it has no more
_RENAMED = {
    r"\btir\b": "tirx for tir",
    r"\bT\.block\(": "T.sblock for T.block",
    r"\bT\.block_attr\(": "T.sblock_attr for T.block_attr",
    r"\bT\.alloc_buffer\(": "T.sblock_alloc_buffer for T.alloc_buffer",
    r"\bT\.Buffer\[": "T.Buffer(shape, dtype) for T.Buffer[shape, dtype]",
    r"\bprim_func(?!\(.*s_tir)": "T.prim_func(s_tir=True) for T.prim_func",
}
_GONE = r"\b(auto_scheduler|autotvm|relay|create_schedule|hybrid|ty)\b"
_DTYPES = re.compile(r"float(16|32|64)|bfloat16|u?int(8|16|32|64)|bool")  # that runs can draw
_GUARDS = re.compile(r"\b(if|while|if_then_else|Select|where)\b")  # around an access


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """A task: a TIR module with ``main``, and its weight.

    ``spec`` is the operator it came from, None for a program of the user's and for a function of a
    network, whose operators are ``kind``.
    """

    name: str
    module: Any
    weight: float = 1.0
    spec: Mapping[str, Any] | None = None
    kind: str | None = None

    @property
    def operator(self) -> str | None:
        """Return the operator with its epilogue, which marks similar tasks; else None."""
        if self.spec is None:
            return self.kind
        return "_".join([str(self.spec["operator"]), *self.spec["epilogue"]])

    @property
    def key(self) -> str:
        """Return the workload key of an operator's records, else of the program."""
        if self.spec is not None:
            return operators.key_of(self.spec)
        return json.dumps(["tir", self.fingerprint])

    @property
    def fingerprint(self) -> str:
        """Compute TVM's structural hash of the program, 16 hexadecimal digits."""
        number = load_tvm().ffi.structural_hash(self.module)
        # TVM returns a signed number
        return f"{number & (1 << 64) - 1:016x}"


def load_workloads(options: Mapping[str, Any]) -> list[Workload]:
    """Make workloads from options of an operator, a file, or a list (``conf/workload``).

    Raises `PrunerError`: the operator is unknown, the file has no TIR function, two tasks have the
    same name, or a weight is not a number above 0.
    """
    if "tasks" in options:
        found = [w for entry in options["tasks"] for w in load_workloads(entry)]
        names = [workload.name for workload in found]
        if not found or len(set(names)) != len(names):
            raise PrunerError(f"workload.tasks={names}: give at least one task, each once")
        return found
    spec = dict(options)
    weight = spec.pop("weight", 1.0)
    if type(weight) not in (int, float) or not 0 < weight < math.inf:
        raise PrunerError(f"workload.weight={weight}: it must be a number above 0")
    weight = float(weight)
    if spec.get("operator") == "file":
        return from_file(Path(str(spec.get("path"))), spec.get("function"), weight)
    return [from_operator(spec, weight)]


def operator(name: str, *, weight: float = 1.0, **options: Any) -> Workload:
    """Make a workload: ``operator("matmul", m=512, n=512, k=512)``; raise as `from_operator`."""
    return from_operator({"operator": name, **options}, weight)


def from_operator(spec: Mapping[str, Any], weight: float = 1.0) -> Workload:
    """Make an operator's workload; raise `PrunerError` for unknown, missing or wrong options."""
    spec = operators.checked(spec)
    tvm = load_tvm().tvm
    te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
    module = tvm.IRModule({"main": te.create_prim_func(operators.tensors(te, topi, spec))})
    name = operators.name_of(spec)
    return Workload(name=name, module=normalised(module), weight=weight, spec=spec)


def from_file(path: Path, function: str | None = None, weight: float = 1.0) -> list[Workload]:
    """Load every TIR function of a Python file, or the named function.

    A function is a PrimFunc or a member of an IRModule. Of several, functions that cannot be tuned
    are left out with a warning. Raises `PrunerError`: no such file, it does not run, it holds no
    (such) TIR function, or none that can be tuned.
    """
    tvm, _, tirx, _ = load_tvm()
    if not path.is_file():
        raise PrunerError(f"workload.path={path}: no such file; give a Python file with TVMScript")
    values = vars(_run_file(path))
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, tirx.PrimFunc):
            found[name] = value
        elif isinstance(value, tvm.IRModule):
            for var, func in value.functions_items():
                if isinstance(func, tirx.PrimFunc):
                    found[f"{name}.{var.name_hint}"] = func
    chosen = {k: v for k, v in found.items() if function in (None, k)}
    if not chosen:
        known = ", ".join(found) or "none"
        wanted = "no TIR function" if function is None else f"no TIR function {function}"
        raise PrunerError(f"{path}: {wanted}; it holds: {known}")
    misfits = {key: reason for key, func in chosen.items() if (reason := _misfit(func))}
    lines = [f"{path}: {key} cannot be tuned: {reason}" for key, reason in misfits.items()]
    if len(misfits) == len(chosen):
        raise PrunerError("; ".join(lines))
    for line in lines:
        logger.warning("%s; it is left out", line)
    return [
        Workload(name=f"{path.stem}_{key}".replace(".", "_"), module=_alone(func), weight=weight)
        for key, func in chosen.items()
        if key not in misfits
    ]


def _run_file(path: Path) -> Any:
    # A file, not a string: the TVMScript parser reads the source of its functions.
    spec = importlib.util.spec_from_file_location(f"workload_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PrunerError(f"workload.path={path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the parser looks for the source of a class
    try:
        with quick_stacks():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        line = lines_of(error)[0]
        line += _older(path.read_text(encoding="utf-8", errors="replace"))
        raise PrunerError(f"{path}: {type(error).__name__}: {line}") from error
    finally:
        del sys.modules[spec.name]
    return module


def _older(text: str) -> str:
    found = [new for old, new in _RENAMED.items() if re.search(old, text)]
    found += [f"no {name}" for name in sorted(set(re.findall(_GONE, text)))]
    return f" (of an older TVM? TVM 0.27 has {', '.join(found)})" if found else ""


def _misfit(func: Any) -> str:
    """Explain why a function cannot be tuned; empty if nothing is in its way."""
    for param in func.params:
        shape = getattr(param, "shape", None)
        if shape is None:
            return (
                f"its argument {param.name} is a number, not a tensor; make it a buffer of shape "
                "(1,), or write its value into the function"
            )
        if any(not isinstance(extent, int) for extent in map(_constant, shape)):
            sizes = ", ".join(map(str, shape))
            return f"its argument {param.name} has the open size ({sizes}); fix its sizes"
        if not _DTYPES.fullmatch(str(param.dtype)):
            return f"its argument {param.name} is {param.dtype}, of which runs draw no inputs"
        if _apart(param):
            return (
                f"its argument {param.name} has strides; runs have compact tensors only: copy it "
                "first, or give it all of the memory and index the part"
            )
    body = func.script()
    if not _GUARDS.search(body):
        try:
            load_tvm().s_tir.analysis.OOBChecker()(_module(func))
        except load_tvm().s_tir.ScheduleError as error:
            return lines_of(error)[-1].removeprefix("Error message: ")
    return ""


def _constant(value: Any) -> Any:
    return value if isinstance(value, int) else getattr(value, "value", None)


def _apart(buffer: Any) -> bool:
    wanted, expected = list(map(_constant, buffer.strides or ())), 1
    for extent, stride in zip(reversed(buffer.shape), reversed(wanted), strict=False):
        if stride != expected and int(extent) > 1:
            return True
        expected *= int(extent)
    return False


def _alone(func: Any) -> Any:
    # with this attribute TVM's RewriteLayout would change the shape of an argument, as for weights
    # that a compiler packs; a function is called with the shapes that it has
    return normalised(_module(func.without_attr("layout_free_buffers")))


def _module(func: Any) -> Any:
    return load_tvm().tvm.IRModule({"main": func.with_attr("global_symbol", "main")})


def normalised(module: Any) -> Any:
    """Convert to MetaSchedule's database form: a function ``main`` without aliasing."""
    tune_context = load_tvm().meta_schedule.tune_context
    return tune_context._normalize_mod(module)


def arguments(module: Any) -> list[tuple[tuple[int, ...], str]]:
    """List shape and dtype of ``main``'s arguments; refuse symbolic shapes."""
    try:
        found = load_tvm().meta_schedule.arg_info.ArgInfo.from_prim_func(module["main"])
        return [(tuple(int(e) for e in info.shape), str(info.dtype)) for info in found]
    except TypeError as error:
        raise PrunerError("an argument of main has a symbolic shape; fix its sizes") from error


def described(workload: Workload) -> str:
    """Describe a workload in a line, with all sizes and its arithmetic."""
    if workload.spec is None:
        each = [f"{list(shape)} {dtype}" for shape, dtype in arguments(workload.module)]
        what = f"main({', '.join(each)})"
    else:
        named = {k: v for k, v in workload.spec.items() if k not in ("operator", "epilogue")}
        named["dtype"] = named.pop("dtype")  # last
        what = " ".join([str(workload.operator), *(f"{k}={v}" for k, v in named.items())])
    return f"{workload.name}: {what}, {flops(workload.module) / 1e9:.4g} GFLOP"


def flops(module: Any) -> float:
    """Estimate the floating-point operations of a module by TVM."""
    estimate = load_tvm().s_tir.analysis.estimate_tir_flops
    return float(estimate(module))
