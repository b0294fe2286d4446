"""Workloads to tune: named operators, TVMScript files, and lists, as TIR modules."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.program.dag.operators import task_options as operators
from pruner.tune.tvm_import import load_tvm


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
    """Make workloads from options as in ``conf/workload``.

    The options name an operator, a file, or a list of both.

    Raises:
        PrunerError: the operator is unknown, the file has no TIR function, or two tasks have the
            same name.
    """
    if "tasks" in options:
        found = [w for entry in options["tasks"] for w in load_workloads(entry)]
        names = [workload.name for workload in found]
        if not found or len(set(names)) != len(names):
            raise PrunerError(f"workload.tasks={names}: give at least one task, each once")
        return found
    spec = dict(options)
    weight = float(spec.pop("weight", 1.0))
    if spec.get("operator") == "file":
        return from_file(Path(str(spec.get("path"))), spec.get("function"), weight)
    return [from_operator(spec, weight)]


def operator(name: str, *, weight: float = 1.0, **options: Any) -> Workload:
    """Make the workload of a named operator: ``operator("matmul", m=512, n=512, k=512)``.

    Raises:
        PrunerError: the operator is unknown, or does not have such an option.
    """
    return from_operator({"operator": name, **options}, weight)


def from_operator(spec: Mapping[str, Any], weight: float = 1.0) -> Workload:
    """Make the workload of an operator from its options.

    Raises:
        PrunerError: options that the operator does not take.
    """
    spec = operators.checked(spec)
    tvm = load_tvm().tvm
    te, topi = importlib.import_module("tvm.te"), importlib.import_module("tvm.topi")
    module = tvm.IRModule({"main": te.create_prim_func(operators.tensors(te, topi, spec))})
    name = operators.name_of(spec)
    return Workload(name=name, module=normalised(module), weight=weight, spec=spec)


def from_file(path: Path, function: str | None = None, weight: float = 1.0) -> list[Workload]:
    """Load every TIR function of a Python file, or the named function.

    A function is a PrimFunc or a member of an IRModule.

    Raises:
        PrunerError: no such file, it does not run, or it holds no (such) TIR function.
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
    return [
        Workload(name=f"{path.stem}_{key}".replace(".", "_"), module=_alone(func), weight=weight)
        for key, func in chosen.items()
    ]


def _run_file(path: Path) -> Any:
    # A file, not a string: the TVMScript parser reads the source of its functions.
    spec = importlib.util.spec_from_file_location(f"workload_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise PrunerError(f"workload.path={path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where the parser looks for the source of a class
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        line = (str(error).strip().splitlines() or [repr(error)])[0]
        raise PrunerError(f"{path}: {type(error).__name__}: {line}") from error
    finally:
        del sys.modules[spec.name]
    return module


def _alone(func: Any) -> Any:
    return normalised(func.with_attr("global_symbol", "main"))


def normalised(module: Any) -> Any:
    """Convert to MetaSchedule's database form: a function ``main`` without aliasing."""
    tune_context = load_tvm().meta_schedule.tune_context
    return tune_context._normalize_mod(module)


def arguments(module: Any) -> list[tuple[tuple[int, ...], str]]:
    """List shape and dtype of every argument of ``main``.

    Raises:
        PrunerError: a symbolic shape.
    """
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


def by_name(workloads: Sequence[Workload]) -> dict[str, Workload]:
    """Index workloads by name."""
    return {workload.name: workload for workload in workloads}
