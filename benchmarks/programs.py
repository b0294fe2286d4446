"""Compare batched programs with TVM: loops, buffers, verdicts, tensorised instructions.

The programs have random decisions, or they are legal programs and their mutations. There are three
sets (`program_cases.py`): operators in float32; half-precision products and convolutions for tensor
cores, some with padded shapes; and tasks of networks that ``coverage.py`` has listed. TVM replays
every program. No GPU is needed. ``results/programs.json`` has each case with its seed and the
commit of the code; the last line has the totals of the sets.

    python benchmarks/programs.py [seed=NUMBER] [folder=outputs/coverage] [set or case ...]

Results of cases that are not named stay in the file. ``made``: TVM raises no error for the program;
``refused_later``: TVM's checks accept the program, but its compiler cannot permute it;
``uncertain``: a region has an unknown size in the batch, so the engine refuses the program.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from program_cases import CASES, Case

from pruner.cli.shared.output import say
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.files import write_json
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.program.nests import LoopNests
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.program.tir.tree import Tree
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.tvm_import import load_tvm

ROOT = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).parent / "results" / "programs.json"
# fill, load a, load b, multiply; wmma: store, too
TENSORIZED = {"wmma": 5, "mma": 4, "lanes": 0, "cpu": 0}
SEED = 20


def kind_of(design: DesignSpace) -> str:
    """The hardware unit that computes products in a space."""
    if design.target.kind.name == "llvm":
        return "cpu"
    kinds = {inst.kind.name for inst in design.trace.insts}
    if "ReadAt" in kinds:
        return "mma"
    return "wmma" if "Blockize" in kinds else "lanes"


def compare(design: DesignSpace, programs: int, rng: np.random.Generator) -> Counter[str]:
    """Counts of equal properties, over about `programs` programs of a space."""
    space = BatchedSpace(design)
    legal = np.zeros((0, space.num_slots), np.int64)
    with suppress(PrunerError):  # none is: vectors of neighbouring rows, as of a transposed operand
        legal = space.sample(max(programs // 4, 1), rng)
    draws = [space.sample_any(max(programs - 2 * len(legal), 1), rng)]
    draws += [legal, space.mutate(legal, rng)] if len(legal) else []
    decisions = np.concatenate(draws)
    verdicts, counts = space.legal(decisions), Counter(spaces=1)
    for rows, tree in apply_groups(space.program, decisions)[0]:
        nests = lower(tree)
        uncertain = np.broadcast_to(tree.uncertain, len(rows))
        for place, row in enumerate(rows):
            ours = Program(tree, nests, place, bool(verdicts[row]))
            same = same_program(design, decisions[row], ours)
            counts.update(same, programs=1, uncertain=bool(uncertain[place]))
            if not same["verdict_equal"]:
                say(f"{kind_of(design)} {decisions[row].tolist()}: ours {ours.verdict}")
    return counts


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a tree that many share."""

    tree: Tree
    nests: LoopNests
    place: int
    verdict: bool


def same_program(design: DesignSpace, decision: Any, ours: Program) -> Counter[str]:
    """Count the properties of a program that equal TVM's.

    Both are made from the same decision vector.
    """
    from tests.tune import tir_truth as truth

    tvm, kind = load_tvm(), kind_of(design)
    schedule, accepted = truth.replayed(tvm, design, decision)
    if schedule is None:
        return Counter(verdict_equal=int(not ours.verdict))
    loops, facts = truth.tvm_loops(schedule), Counter(made=1, accepted=int(accepted))
    if kind == "mma":
        later = accepted and not truth.permutes(tvm, schedule)
        facts["refused_later"] += later
        accepted = accepted and not later
        loops |= truth.tvm_copies(tvm, schedule)
    buffers = truth.tvm_buffers(tvm, schedule)
    our_buffers = truth.our_buffers(ours.tree, ours.nests, ours.place)
    done = [inst.kind.name for inst in schedule.trace.insts].count("Tensorize")
    facts.update(
        verdict_equal=int(ours.verdict == accepted),
        loops_equal=int(truth.our_loops(ours.tree, ours.place) == loops),
        buffers_equal=int(our_buffers == {name: buffers.get(name) for name in our_buffers}),
        tensorized=int(done == TENSORIZED[kind]),
    )
    return facts


def compared(case: Case, folder: Path, seed: int) -> dict[str, Any]:
    """Counts of a case by kind of space, with the seed."""
    rng, found, refused = np.random.default_rng(seed), dict[str, Counter[str]](), Counter[str]()
    for name, module, target in case.tasks(folder, rng):
        start = time.perf_counter()
        designs = design_spaces(module, target)
        kinds = [kind_of(design) for design in designs]
        for place in sorted(case.chosen(kinds, rng)):
            counts = found.setdefault(kinds[place], Counter())
            try:
                counts += compare(designs[place], case.programs[kinds[place]], rng)
            except UnsupportedProgram as error:
                refused[f"{name}: {error}"] += 1
        say(f"{case.name} {name}: {len(designs)} spaces, {time.perf_counter() - start:.0f} s")
    counted = {kind: {key: int(n) for key, n in counts.items()} for kind, counts in found.items()}
    return {"seed": seed, **counted, **({"not_batched": dict(refused)} if refused else {})}


def totals(cases: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Sums over the cases of a set, all kinds of spaces together."""
    sums: dict[str, Counter[str]] = {}
    for name, case in cases.items():
        for kind in TENSORIZED:
            sums.setdefault(name.partition("/")[0], Counter()).update(case.get(kind, {}))
    return {name: dict(counts) for name, counts in sums.items()}


def main(words: Iterable[str]) -> None:
    """Compare the named cases, or all."""
    sys.path.insert(0, str(ROOT))
    given = dict(word.split("=", 1) for word in words if "=" in word)
    names = {word for word in words if "=" not in word}
    folder = Path(given.get("folder", "outputs/coverage"))
    commit = git_commit()  # before the file of results changes
    KEPT.parent.mkdir(exist_ok=True)
    cases = json.loads(KEPT.read_text(encoding="utf-8"))["cases"] if KEPT.is_file() else {}
    asked = [c for c in CASES.values() if not names or names & {c.name, c.of_set}]
    if unknown := names - {name for c in CASES.values() for name in (c.name, c.of_set)}:
        raise SystemExit(f"nothing is called {min(unknown)}; there are {', '.join(CASES)}")
    for case in asked:
        cases[case.name] = {
            "commit": commit,
            **compared(case, folder, int(given.get("seed", SEED))),
        }
        write_json(KEPT, {"cases": cases, "total": totals(cases)}, indent=1)
    print(json.dumps(totals(cases)))


if __name__ == "__main__":
    main(sys.argv[1:])
