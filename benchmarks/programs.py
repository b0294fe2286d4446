"""Compare batched programs with TVM: loops, buffers, verdicts, tensorised instructions.

The programs have random decisions, or they are legal programs and their mutations. There are three
sets: operators in float32; half-precision products and convolutions for tensor
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from network_cells import known_list, tasks_file

from pruner.cli.shared.output import say
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.files import write_json
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.program.nests import LoopNests
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.program.tir.tree import Tree
from pruner.tune.measure.machine import make_platform
from pruner.tune.networks.extraction import read_tasks
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import DesignSpace, design_spaces
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import from_operator

ROOT = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).parent / "results" / "programs.json"
# fill, load a, load b, multiply; wmma: store, too
TENSORIZED = {"wmma": 5, "mma": 4, "lanes": 0, "cpu": 0}
SEED = 20
LANES = {"lanes": 30, "cpu": 30}
TENSOR = {"wmma": 90, "mma": 240, "lanes": 20}
FEW = {"wmma": 9, "mma": 9, "lanes": 9, "cpu": 9}
TASKS = 80  # of a form of the networks
SHARED_BYTES = 166912  # of an A100 with the opt-in: CUDA C++ Programming Guide


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tasks on a target, and the number of programs of each kind."""

    name: str  # of its set, and of itself
    programs: Mapping[str, int]

    @property
    def of_set(self) -> str:
        """The set that it belongs to."""
        return self.name.partition("/")[0]

    def tasks(self, folder: Path, rng: np.random.Generator) -> Iterator[tuple[str, Any, Any]]:
        """Name, TIR module and target of every task; ``folder``: of `coverage.py`."""
        raise NotImplementedError

    def chosen(self, kinds: Sequence[str], rng: np.random.Generator) -> set[int]:
        """The chosen spaces of a task, by their kinds: here all."""
        del rng
        return set(range(len(kinds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCase(Case):
    """A single operator."""

    operator: Mapping[str, Any]
    target: Mapping[str, Any] | str

    def tasks(self, folder: Path, rng: np.random.Generator) -> Iterator[tuple[str, Any, Any]]:
        """The operator as a task."""
        del folder, rng
        target = load_tvm().tvm.target.Target
        made = target(self.target)
        if self.programs is TENSOR:  # with all the shared memory that a kernel can ask for
            opted_in = {"max_shared_memory_per_block": SHARED_BYTES}
            made = target({**json.loads(str(made)), **opted_in})
        yield self.name, from_operator(self.operator).module, made


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCase(Case):
    """Tasks of networks listed in a form, drawn at random, each once."""

    platform: str
    listed: str  # how `coverage.py` calls the listing: platform, layout, precision

    def tasks(self, folder: Path, rng: np.random.Generator) -> Iterator[tuple[str, Any, Any]]:
        """At most `TASKS` tasks of the networks."""
        found: dict[str, Any] = {}
        for listing in sorted((folder / "networks").glob(f"*-{self.listed}")):
            known = known_list(listing)
            if known is not None and known.error is None:
                found |= {task.key: task for task in read_tasks(tasks_file(listing))}
        target = make_platform(load_device(conf_folder() / "platform" / f"{self.platform}.yaml"))
        for key in rng.permutation(sorted(found))[:TASKS]:
            yield found[key].name, found[key].module, target.target

    def chosen(self, kinds: Sequence[str], rng: np.random.Generator) -> set[int]:
        """One random space of every kind."""
        places = {kind: [i for i, k in enumerate(kinds) if k == kind] for kind in kinds}
        return {int(rng.choice(of_kind)) for of_kind in places.values()}


A100 = "nvidia/nvidia-a100"
CPU: dict[str, Any] = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
IMAGE: dict[str, Any] = {"n": 1, "h": 28, "w": 28, "padding": 1, "kh": 3, "kw": 3, "stride": 1}
WINDOW = {"stride": 1, "n": 1}
OPERATORS: dict[str, dict[str, Any]] = {
    "matmul": {"operator": "matmul", "m": 128, "n": 96, "k": 256},
    "matmul_bias_relu": {
        "operator": "matmul", "m": 128, "n": 128, "k": 128, "epilogue": ["bias", "relu"],
    },
    "batch_matmul": {"operator": "batch_matmul", "batch": 4, "m": 64, "n": 48, "k": 64},
    "conv2d": {"operator": "conv2d", **IMAGE, "ci": 32, "co": 64, "epilogue": ["bias", "relu"]},
    "conv2d_strided": {
        "operator": "conv2d", **IMAGE, "ci": 32, "co": 64, "stride": 2, "epilogue": ["add", "relu"],
    },
    "conv2d_1x1": {
        "operator": "conv2d", **IMAGE, "ci": 64, "co": 64, "padding": 0, "kh": 1, "kw": 1,
    },
    "conv2d_7x7": {
        "operator": "conv2d", **IMAGE, "ci": 3, "co": 32, "padding": 3, "kh": 7, "kw": 7,
        "stride": 2,
    },
    "grouped_conv2d": {"operator": "grouped_conv2d", **IMAGE, "ci": 64, "co": 64, "groups": 4},
    "depthwise": {"operator": "depthwise_conv2d", **IMAGE, "c": 64},
    "max_pool": {"operator": "pool", "kind": "max", **IMAGE, "c": 64, "stride": 2},
    "avg_pool": {"operator": "pool", "kind": "avg", **IMAGE, "c": 64, "padding": 0},
    "softmax": {"operator": "softmax", "rows": 64, "columns": 100},
    "softmax_wide": {"operator": "softmax", "rows": 12, "columns": 1024},
    "layer_norm": {"operator": "layer_norm", "rows": 64, "columns": 192},
}  # fmt: skip
HALVES = ("matmul_bias_relu", "conv2d")  # on a CPU, too, in float16
PRODUCTS: dict[str, dict[str, Any]] = {
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
FORMS = {
    "a100-float32": ("a100", "a100-NCHW-float32"),
    "a100-float16": ("a100", "a100-NHWC-float16"),
    "cpu-channels-last": ("cpu-avx512", "cpu-avx512-NHWC-float32"),
    "cpu-channels-first": ("cpu-avx512", "cpu-avx512-NCHW-float32"),
}


def _cases() -> Iterator[Case]:
    for place, target in (("a100", A100), ("cpu", CPU)):
        for name, spec in OPERATORS.items():
            yield OperatorCase(
                name=f"operators/{name}-{place}", programs=LANES, operator=spec, target=target,
            )  # fmt: skip
    for name in HALVES:
        yield OperatorCase(
            name=f"operators/{name}-half-cpu", programs=LANES, target=CPU,
            operator={**OPERATORS[name], "dtype": "float16"},
        )  # fmt: skip
    for name, spec in PRODUCTS.items():
        half = {**spec, "dtype": "float16"}
        yield OperatorCase(
            name=f"tensor_cores/{name}", programs=TENSOR, operator=half, target=A100,
        )  # fmt: skip
    for name, (platform, listed) in FORMS.items():
        yield NetworkCase(
            name=f"networks/{name}", programs=FEW, platform=platform, listed=listed,
        )  # fmt: skip


CASES = {case.name: case for case in _cases()}


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
