"""What is known of one operator, and its options in ``tune.py workload=``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pruner.program.dag.operators.builder import DagBuilder

Tensors = list[Any]  # TE tensors: the inputs, then the output


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator; its file holds nothing else. The arguments are those of its workload key.

    ``dag`` gives the compute DAG as built so far (epilogues follow); None where it cannot be
    written as one. Stages, axes and expressions are TE's own, in TE's order, because schedule steps
    refer to them by number.
    ``te`` gives the same as TE tensors. It takes the modules ``tvm.te`` and ``tvm.topi`` and the
    dtype before the arguments, so that this room needs no TVM and both versions of TVM tune the
    same thing (0.19 with Ansor, 0.27 with MetaSchedule).
    ``options`` are the arguments a user sets in ``tune.py workload=<operator>``, in the order of
    task names; none: it is not tuned by name. ``fixed`` has the other arguments' values and
    ``choices`` the values of options that are no size.
    """

    dag: Callable[..., DagBuilder] | None
    te: Callable[..., Tensors]
    options: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
