"""Programs of tensor-core spaces against TVM: loops, buffers, verdicts, tensorised instructions.

Random decisions, and legal ones with their mutations, of half-precision matmuls, batch matmuls and
convolutions, padded shapes among them, for an A100 target with all the shared memory that a kernel
can ask for. Every program of every space is replayed by TVM: ``wmma`` and ``mma`` instructions, and
ordinary lanes. Nothing needs a GPU. Writes ``results/tensor_cores.json``, each case with the commit
of the code that it was made with; its content is the last line. Programs of which TVM raises an
error are counted apart: it makes no program there.

    python benchmarks/tensor_cores.py [seed=NUMBER] [case ...]

Cases that are not named keep what the file of results has of them.
"""

import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.program.tir.lower import lower
from pruner.program.tir.replay import apply_groups
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = {"wmma": 90, "mma": 240, "lanes": 20}  # of one space
TENSORIZED = {"wmma": 5, "mma": 4, "lanes": 0}  # fill, load a, load b, multiply; wmma: store, too
SHARED_BYTES = 166912  # of an A100 with the opt-in: CUDA C++ Programming Guide
SEED = 20
WINDOW = {"stride": 1, "n": 1}
CASES: dict[str, dict[str, Any]] = {
    "matmul": {"operator": "matmul", "m": 1024, "n": 1024, "k": 1024, "epilogue": ["relu"]},
    "matmul_wide": {"operator": "matmul", "m": 256, "n": 384, "k": 512, "epilogue": ["bias"]},
    "matmul_padded": {"operator": "matmul", "m": 197, "n": 768, "k": 768, "epilogue": ["bias"]},
    "matmul_odd": {"operator": "matmul", "m": 50, "n": 100, "k": 36},
    "matmul_deep": {"operator": "matmul", "m": 256, "n": 512, "k": 61, "epilogue": ["relu"]},
    "matmul_long": {"operator": "matmul", "m": 96, "n": 1536, "k": 768},
    "batch": {"operator": "batch_matmul", "batch": 12, "m": 128, "n": 128, "k": 64},
    "batch_padded": {"operator": "batch_matmul", "batch": 8, "m": 197, "n": 197, "k": 64},
    "conv": {
        "operator": "conv2d", **WINDOW, "ci": 64, "h": 56, "w": 56, "co": 64, "kh": 3, "kw": 3,
        "padding": 1, "epilogue": ["relu"],
    },
    "conv_strided": {
        "operator": "conv2d", "n": 1, "ci": 64, "h": 56, "w": 56, "co": 128, "kh": 3, "kw": 3,
        "stride": 2, "padding": 1, "epilogue": ["bias", "relu"],
    },
    "conv_padded": {
        "operator": "conv2d", **WINDOW, "ci": 64, "h": 14, "w": 14, "co": 48, "kh": 1, "kw": 1,
        "padding": 0, "epilogue": ["bias"],
    },
}  # fmt: skip


def kind_of(design: DesignSpace) -> str:
    """What computes products in a space."""
    kinds = {inst.kind.name for inst in design.trace.insts}
    if "ReadAt" in kinds:
        return "mma"
    return "wmma" if "Blockize" in kinds else "lanes"


def compare(design: DesignSpace, truth: Any, seed: int) -> Counter[str]:
    """Counts of what is equal."""
    space, rng, tvm, kind = (
        BatchedSpace(design),
        np.random.default_rng(seed),
        load_tvm(),
        kind_of(design),
    )
    programs = PROGRAMS[kind]
    legal = np.zeros((0, space.num_slots), np.int64)
    with suppress(PrunerError):  # none is: vectors of neighbouring rows, as of a transposed operand
        legal = space.sample(programs // 4, rng)
    draws = [space.sample_any(programs - 2 * len(legal), rng), legal, space.mutate(legal, rng)]
    decisions = np.concatenate(draws)
    verdicts, counts = space.legal(decisions), Counter[str]()
    for rows, tree in apply_groups(space.program, decisions)[0]:
        nests = lower(tree)
        for place, row in enumerate(rows):
            counts["programs"] += 1
            schedule, accepted = truth.replayed(tvm, design, decisions[row])
            if schedule is None:
                counts["tvm_raises"] += 1
                continue
            counts["accepted"] += accepted
            theirs = truth.tvm_loops(schedule)
            if kind == "mma":
                refused = accepted and not truth.permutes(tvm, schedule)
                counts["accepted_but_not_compiled"] += refused
                accepted = accepted and not refused
                theirs |= truth.tvm_copies(tvm, schedule)
            same = bool(verdicts[row]) == accepted
            counts["verdict_equal"] += same
            if not same:
                print(decisions[row].tolist(), "ours", verdicts[row], file=sys.stderr)
            counts["loops_equal"] += truth.our_loops(tree, place) == theirs
            ours = truth.our_buffers(tree, nests, place)
            buffers = truth.tvm_buffers(tvm, schedule)
            counts["buffers_equal"] += ours == {name: buffers.get(name) for name in ours}
            kinds = [inst.kind.name for inst in schedule.trace.insts]
            counts["tensorized"] += kinds.count("Tensorize") == TENSORIZED[kind]
    return counts


def compared(name: str, truth: Any, target: Any, seed: int) -> dict[str, Any]:
    """Counts of a case by kind of space, with the seed."""
    module = from_operator({**CASES[name], "dtype": "float16"}).module
    found: dict[str, Counter[str]] = {}
    for design in design_spaces(module, target):
        counts = found.setdefault(kind_of(design), Counter())
        counts += compare(design, truth, seed)
        counts["spaces"] += 1
    counted = {kind: {key: int(n) for key, n in counts.items()} for kind, counts in found.items()}
    return {"seed": seed, **counted}


def main() -> None:
    """Compare all cases."""
    sys.path.insert(0, str(ROOT))
    from tests.tune import tir_truth as truth

    seeds = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("seed=")]
    names = [word for word in sys.argv[1:] if not word.startswith("seed=")]
    commit = git_commit()  # before the file of results changes
    attributes = json.loads(str(load_tvm().tvm.target.Target("nvidia/nvidia-a100")))
    target = {**attributes, "max_shared_memory_per_block": SHARED_BYTES}
    kept = Path(__file__).parent / "results" / "tensor_cores.json"
    kept.parent.mkdir(exist_ok=True)
    cases = json.loads(kept.read_text(encoding="utf-8"))["cases"] if kept.is_file() else {}
    for name in names or CASES:
        made = load_tvm().tvm.target.Target(target)
        found = compared(name, truth, made, int(seeds[0]) if seeds else SEED)
        cases[name] = {"commit": commit, **found}
        print(name, cases[name], file=sys.stderr)
        total: dict[str, Counter[str]] = {}
        for case in cases.values():
            for kind in TENSORIZED:
                total.setdefault(kind, Counter()).update(case.get(kind, {}))
        line = {"cases": cases, "total": {kind: dict(found) for kind, found in total.items()}}
        write_json(kept, line, indent=1)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
