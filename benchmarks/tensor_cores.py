"""Programs of tensor-core spaces against TVM: loops, buffers, verdicts, tensorised instructions.

Random decisions, and legal ones with their mutations, of half-precision matmuls, batch matmuls and
convolutions, padded shapes among them, for an A100 target. Every program is replayed by TVM;
nothing needs a GPU. Writes ``results/tensor_cores.json``; its content is the last line. Programs of
which TVM raises an error are counted apart: it makes no program there.

    python benchmarks/tensor_cores.py [case ...]

Cases that are not named keep what the file of results has of them.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from pruner.files import write_json
from pruner.program.tir.lower import lower
from pruner.program.tir.replay import apply_groups
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = 180
WINDOW = {"stride": 1, "n": 1}
CASES: dict[str, dict[str, Any]] = {
    "matmul": {"operator": "matmul", "m": 1024, "n": 1024, "k": 1024, "epilogue": ["relu"]},
    "matmul_wide": {"operator": "matmul", "m": 256, "n": 384, "k": 512, "epilogue": ["bias"]},
    "matmul_padded": {"operator": "matmul", "m": 197, "n": 768, "k": 768, "epilogue": ["bias"]},
    "matmul_odd": {"operator": "matmul", "m": 50, "n": 100, "k": 36},
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


def compare(design: DesignSpace, programs: int, truth: Any) -> Counter[str]:
    """Counts of what is equal."""
    space, rng, tvm = BatchedSpace(design), np.random.default_rng(11), load_tvm()
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
            same = bool(verdicts[row]) == accepted
            counts["verdict_equal"] += same
            if not same:
                print(decisions[row].tolist(), "ours", verdicts[row], file=sys.stderr)
            counts["loops_equal"] += truth.our_loops(tree, place) == truth.tvm_loops(schedule)
            ours = truth.our_buffers(tree, nests, place)
            theirs = truth.tvm_buffers(tvm, schedule)
            counts["buffers_equal"] += ours == {name: theirs.get(name) for name in ours}
            kinds = [inst.kind.name for inst in schedule.trace.insts]
            counts["five_tensorize"] += kinds.count("Tensorize") == 5
    return counts


def main() -> None:
    """Compare all cases."""
    sys.path.insert(0, str(ROOT))
    from tests.tune import tir_truth as truth

    target = load_tvm().tvm.target.Target("nvidia/nvidia-a100")
    kept = Path(__file__).parent / "results" / "tensor_cores.json"
    kept.parent.mkdir(exist_ok=True)
    cases = json.loads(kept.read_text(encoding="utf-8"))["cases"] if kept.is_file() else {}
    for name in sys.argv[1:] or CASES:
        found = Counter[str]()
        module = from_operator({**CASES[name], "dtype": "float16"}).module
        for design in design_spaces(module, target):
            found += compare(design, PROGRAMS, truth)
            found["spaces"] += 1
        cases[name] = {key: int(value) for key, value in found.items()}
        print(name, cases[name], file=sys.stderr)
        total = sum((Counter(case) for case in cases.values()), Counter[str]())
        line = {"cases": cases, "total": dict(total)}
        write_json(kept, line, indent=1)
    print(json.dumps(line))


if __name__ == "__main__":
    main()
