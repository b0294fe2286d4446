"""Programs of CUDA targets, run on the simulated device and compared with numpy.

    python -m tests.cudasim.simulator check=true order=random \\
        python -m tests.cudasim.programs each=7 table=experiments/gpu/simulated.csv

draws programs of every space of every case and counts; without ``table`` it prints a JSON line a
program. ``only=tensor``: spaces on tensor cores alone; ``only=mma``: spaces of this kind.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pruner.errors import PrunerError
from pruner.program.device import load_device
from pruner.tune.compiling import compiled
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.numerics import inputs, tolerance, worst_error
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.tvm_import import load_tvm, without_torch
from pruner.tune.workloads import Workload, arguments, from_operator
from tests.paths import CONF

BARRIER = "__syncthreads();"
IMAGE = {"operator": "conv2d", "n": 1, "h": 8, "w": 8, "stride": 1}
CONV = {**IMAGE, "ci": 32, "co": 32, "kh": 3, "kw": 3, "padding": 1}
POINTWISE = {**IMAGE, "ci": 64, "co": 32, "kh": 1, "kw": 1, "padding": 0}
ENDING = {"epilogue": ["bias", "relu"]}
BATCH = {"operator": "batch_matmul", "batch": 2, "m": 32, "n": 48}


def matmul(m: int, n: int, k: int) -> dict[str, Any]:
    return {"operator": "matmul", "m": m, "n": n, "k": k}


# Small shapes, of which some are no multiples of a fragment.
CASES = [
    ("a100", matmul(64, 64, 256), "float16"),
    ("a100", {**matmul(64, 96, 61), **ENDING}, "float16"),
    ("a100", matmul(64, 128, 61), "float16"),
    ("t4", matmul(64, 64, 64), "float16"),
    ("t4", {**matmul(50, 48, 40), **ENDING}, "float16"),
    ("h100", matmul(96, 64, 128), "float16"),
    ("a100", {**BATCH, "k": 64}, "float16"),
    ("t4", {**POINTWISE, **ENDING}, "float16"),
    ("a100", {**CONV, **ENDING}, "float16"),
    ("a100", matmul(64, 64, 64), "float32"),
    ("h100", {**matmul(60, 36, 50), **ENDING}, "float32"),
    ("t4", {**BATCH, "k": 24}, "float32"),
    ("a100", {**CONV, **ENDING}, "float32"),
]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one program; ``space`` is the kind of its space."""

    platform: str
    operator: str
    dtype: str
    space: str
    decisions: list[int]
    right: bool = False
    worst_error: float | None = None
    error: str | None = None  # a failed build, or a fault that the device found


def kind_of(design: DesignSpace) -> str:
    """wmma, mma or lanes, and whether their software pipelines ask for asynchronous copies."""
    kinds = {inst.kind.name for inst in design.trace.insts}
    found = "mma" if "ReadAt" in kinds else "wmma" if "Blockize" in kinds else "lanes"
    notes = [str(i.attrs[0]) for i in design.trace.insts if i.kind.name == "Annotate"]
    return f"{found}, copies ahead" if "software_pipeline_async_stages" in notes else found


def wanted(workload: Workload, values: list[np.ndarray]) -> np.ndarray:
    """The operator's results by numpy, in float64."""
    spec = workload.spec
    x, y, *rest = (value.astype(np.float64) for value in values[:-1])
    if spec["operator"] != "conv2d":
        found = x @ y
    else:
        pad = spec["padding"]
        x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(x, y.shape[2:], (2, 3))
        found = np.einsum("nchwij,ocij->nohw", windows, y)
        rest = [bias[:, None, None] for bias in rest]
    return np.maximum(found + rest[0], 0) if rest else found


class Runner:
    """One workload on the device; runs its programs."""

    def __init__(self, platform: str, spec: dict[str, Any], dtype: str) -> None:
        target = make_platform(load_device(CONF / "platform" / f"{platform}.yaml")).target
        self._workload = from_operator({**spec, "dtype": dtype})
        self._named = {"platform": platform, "operator": self._workload.name, "dtype": dtype}
        self._target, self._arguments = target, arguments(self._workload.module)
        self._values = inputs(self._arguments)
        self._wanted = wanted(self._workload, self._values)
        self.spaces = design_spaces(self._workload.module, target)

    def outcome(self, design: DesignSpace, row: np.ndarray) -> Outcome:
        """A program drawn from a space, compiled, run and compared."""
        named = {**self._named, "space": kind_of(design), "decisions": row.tolist()}
        try:
            error = worst_error(self._result(design, row), self._wanted)
        except Exception as failed:  # of TVM, by what it stumbles over
            lines = str(failed).strip().splitlines() or [repr(failed)]
            told = next((line for line in lines if "CUDA_ERROR" in line), lines[-1])
            return Outcome(**named, error=told[-300:])
        right = error <= tolerance(self._arguments)
        return Outcome(**named, worst_error=error, right=right)

    def source(self, design: DesignSpace, row: np.ndarray) -> str:
        built = compiled(design.replay(row, 1).mod, self._target)
        return str(built.mod.imports[0].inspect_source())

    def _result(self, design: DesignSpace, row: np.ndarray) -> np.ndarray:
        tvm, schedule = load_tvm().tvm, design.replay(row, 1)
        if schedule is None:
            raise RuntimeError("a draw that the engine calls legal, and TVM refuses")
        device = tvm.device("cuda", 0)
        built = compiled(schedule.mod, self._target)
        arrays = [tvm.runtime.tensor(value, device=device) for value in self._values]
        built["main"](*arrays)
        device.sync()
        return np.asarray(arrays[-1].numpy())


def outcomes(each: int, *, seed: str = "0", only: str = "", case: str = "") -> Iterator[Outcome]:
    """Of ``each`` programs of every space whose kind is wanted; ``case``: a number of `CASES`."""
    for platform, spec, dtype in CASES if case == "" else [CASES[int(case)]]:
        runner, rng = Runner(platform, spec, dtype), np.random.default_rng(int(seed))
        for design in runner.spaces:
            kind = kind_of(design)
            if kind.startswith("lanes") if only == "tensor" else not kind.startswith(only):
                continue
            with suppress(PrunerError):  # a space without legal programs, as of 13 fragments of k
                for row in BatchedSpace(design).sample(each, rng):
                    yield runner.outcome(design, row)


def without_barriers(case: str, space: str, most: int) -> Iterator[tuple[int | None, Outcome]]:
    """A program whole, then without its n-th barrier, for up to ``most`` of them."""
    runner = Runner(*CASES[int(case)])
    design = next(one for one in runner.spaces if kind_of(one) == space)
    row = BatchedSpace(design).sample(1, np.random.default_rng(1))[0]
    source = runner.source(design, row)
    barriers = source[source.rindex("__global__") :].count(BARRIER)
    yield None, runner.outcome(design, row)
    for number in np.unique(np.linspace(0, barriers - 1, min(most, barriers)).astype(int)):
        os.environ["SIM_WITHOUT"] = f"{BARRIER}:{number}"
        yield int(number), runner.outcome(design, row)
    del os.environ["SIM_WITHOUT"]


def table(found: list[Outcome]) -> pd.DataFrame:
    """Counts by case and kind of space; ``unwritten``: programs that read what nobody wrote."""
    rows = pd.DataFrame([asdict(one) for one in found])
    told = rows["error"].fillna("")
    faults = {name: told.str.extract(rf"(\d+) {name}")[0].fillna(0).astype(int) > 0
              for name in ("races", "unwritten", "divergent")}  # fmt: skip
    outside = told.str.contains("ILLEGAL_ADDRESS")
    ran = rows["worst_error"].notna() | outside | np.logical_or.reduce([*faults.values()])
    counts = rows.assign(
        programs=1, wrong=rows["worst_error"].notna() & ~rows["right"], **faults,
        outside=outside, not_built=~ran,
    )  # fmt: skip
    names = ["programs", "right", "wrong", *faults, "outside", "not_built"]
    groups = counts.groupby(["platform", "operator", "space"], sort=False)
    return groups.agg({**dict.fromkeys(names, "sum"), "worst_error": "max"}).reset_index()


def main(words: list[str]) -> None:
    """See above; ``barriers=SPACE`` also leaves barriers out of one program of the case."""
    with without_torch():
        load_tvm()
    given = dict(word.split("=", 1) for word in words)
    space, path = given.pop("barriers", None), given.pop("table", None)
    each = int(given.pop("each", 1))
    if space is not None:
        for number, one in without_barriers(given["case"], space, each):
            print(json.dumps({"without": number, **asdict(one)}), flush=True)
    found = []
    for one in outcomes(each, **given):
        found.append(one)
        print(json.dumps(asdict(one)), flush=True)
    if path is not None:
        table(found).to_csv(Path(path), index=False, float_format="%.2g")


if __name__ == "__main__":
    main(sys.argv[1:])
