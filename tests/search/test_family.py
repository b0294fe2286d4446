"""Families of skeletons against enumeration, recorded programs and the engine."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pruner.data.quarantine import Quarantine
from pruner.data.tasks import read_tasks
from pruner.errors import UnsupportedProgram
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.program.dag.operators import dag_for_workload
from pruner.program.dag.task_index import find_dag
from pruner.program.te.apply import replay
from pruner.program.te.bounds import infer_bounds
from pruner.program.te.skeleton import group_programs
from pruner.program.te.steps import ComputeAt, Fuse, parse_steps
from pruner.search.ansor_space.extents import split_extents
from pruner.search.ansor_space.family import Family
from pruner.search.ansor_space.scores import DraftScore, FamilyScore, LegalPrograms
from pruner.search.explorer import ExplorerSettings, explore
from pruner.search.space import CPU_RULE, DecisionSpace, MutationRule
from tests.features.matmul_skeleton import matmul_dag, matmul_steps

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
BUNDLED = ROOT / "datasets" / "bundled" / "measure_records"
CONV = '["conv2d_layer", 1, 4, 8, 8, 4, 3, 3, 1, "SAME"]'
# Ansor's CPU sketch of a padded convolution: SSRSRS tiles, the padding computed in a tile loop.
CPU_STEPS = [
    ["SP", 3, 0, 1, [1, 1, 1], 1],
    ["SP", 3, 4, 4, [1, 2, 2], 1],
    ["SP", 3, 8, 8, [1, 4, 1], 1],
    ["SP", 3, 12, 8, [2, 1, 4], 1],
    ["SP", 3, 16, 4, [2], 1],
    ["SP", 3, 18, 3, [3], 1],
    ["SP", 3, 20, 3, [1], 1],
    ["RE", 3, [0, 4, 8, 12, 1, 5, 9, 13, 16, 18, 20, 2, 6, 10, 14, 17, 19, 21, 3, 7, 11, 15]],
    ["CA", 1, 3, 8],
    ["FU", 3, [0, 1, 2]],
    ["AN", 3, 0, 3],
    ["PR", 3, 0, "auto_unroll_max_step$64"],
    ["AN", 3, 19, 2],
]


def cpu_task():
    path = BUNDLED / "cpu-avx2" / "conv2d_1_64_28_28_64_3_3_1_SAME.json.gz"
    task = read_tasks(path, Quarantine())[0]
    return find_dag(task.workload_key, task.fused), group_programs(task.steps)[0]


@pytest.fixture(scope="module")
def cpu():
    dag, groups = cpu_task()
    return Family(dag, groups[0].skeleton)


@pytest.fixture(scope="module")
def gpu():
    steps = matmul_steps(64, 64, 64, (1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
    return Family(matmul_dag(64, 64, 64), parse_steps(steps)[0])


def every(family):
    """All decision vectors of ones with every combination of alternatives."""
    choices = list(itertools.product(*(range(len(o.alternatives)) for o in family.opens)))
    ones = np.ones((len(choices), family.num_slots), np.int64)
    return np.concatenate([ones, np.array(choices, np.int64).reshape(len(choices), -1)], axis=1)


def test_the_first_alternatives_are_the_skeleton(cpu, gpu):
    for family in (cpu, gpu):
        assert family.member((0,) * len(family.opens)) == family.skeleton


def test_a_cpu_family_opens_location_parallel_depth_and_vectors(cpu):
    kinds = Counter((o.rule, type(o.alternatives[0]).__name__) for o in cpu.opens)
    assert kinds[("location", "ComputeAt")] == 1
    assert kinds[("annotation", "Fuse")] == 1
    assert kinds[("annotation", "Annotate")] >= 1


def test_fetches_of_a_gpu_move_between_reduction_loops(gpu):
    assert [o.rule for o in gpu.opens] == ["location", "location"]
    for open_step in gpu.opens:
        # reduction loops k0, k1, k2 are leaves 6, 7 and 10 of the tiled stage
        assert sorted(a.target_iter for a in open_step.alternatives) == [6, 7, 10]


def test_validity_is_the_engines(cpu):
    rows = every(cpu)
    valid = cpu.valid(rows)
    for row, good in zip(rows.tolist(), valid.tolist(), strict=True):
        if good:
            schedule = replay(cpu.dag, cpu.member(tuple(row[cpu.num_slots :])), rows[:1, :-1])
            infer_bounds(schedule)


def test_members_are_other_recorded_programs():
    """Skeletons of other records of the task are members of one of them."""
    dag, groups = cpu_task()
    recorded = {group.skeleton for group in groups}
    reached = set()
    for group in groups[:4]:
        family = Family(dag, group.skeleton)
        rows = every(family)
        chosen = rows[family.valid(rows)][:, family.num_slots :].tolist()
        reached |= {family.member(tuple(row)) for row in chosen} & recorded
    assert len(reached) > 5


def test_annotations_keep_their_loop_when_the_parallel_depth_changes():
    family = Family(dag_for_workload(CONV, ()), parse_steps(CPU_STEPS)[0])
    number, depth = next(
        (i, o) for i, o in enumerate(family.opens) if isinstance(o.alternatives[0], Fuse)
    )
    marked = {}
    for value, fuse in enumerate(depth.alternatives):
        choices = [0] * len(family.opens)
        choices[number] = value
        member = family.member(tuple(choices))
        stage = replay(family.dag, member, np.ones((1, family.num_slots), np.int64)).at(3)
        vector = next(loop for loop, mark in stage.marks.items() if mark == "vectorize")
        marked[len(fuse.iters)] = (len(stage.leaves) - stage.leaves.index(vector), vector.name)
    assert len(marked) > 2
    assert len(set(marked.values())) == 1


def test_samples_are_uniform_over_valid_members_and_mutations_reach_all(cpu):
    rule = MutationRule(tile=0.1, unroll=0.1, location=0.4, annotation=0.4)
    space = DecisionSpace(cpu.dag, cpu.skeleton, family=cpu, rule=rule)
    rng = np.random.default_rng(0)
    rows = every(cpu)
    members = {tuple(r) for r in rows[cpu.valid(rows)][:, cpu.num_slots :].tolist()}
    drawn = space.sample(40_000, rng)
    assert space.contains(drawn).all()
    counts = Counter(map(tuple, drawn[:, cpu.num_slots :].tolist()))
    assert set(counts) == members
    expected, freedom = 40_000 / len(members), len(members) - 1
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    assert statistic < freedom + 5 * np.sqrt(2 * freedom)
    walkers = drawn[:1].repeat(20_000, axis=0)
    for _ in range(100):
        walkers = space.mutate(walkers, rng)
    assert {tuple(r) for r in walkers[:, cpu.num_slots :].tolist()} == members


def test_mutations_are_shared_as_in_ansor(cpu):
    space = DecisionSpace(cpu.dag, cpu.skeleton, family=cpu)
    rng = np.random.default_rng(1)
    parents = space.sample(60_000, rng)
    changed = space.mutate(parents, rng) != parents
    total = CPU_RULE.tile + CPU_RULE.unroll + CPU_RULE.location + CPU_RULE.annotation
    for choice in space.choices:
        alike = [c for c in space.choices if c.rule == choice.rule]
        share = getattr(CPU_RULE, choice.rule) / total / len(alike)
        kept = 1 - 1 / len(choice.values)  # a redraw may give the same again
        assert changed[:, choice.slot].mean() == pytest.approx(share * kept, abs=0.003)
    tiles = np.stack([changed[:, t.slots].any(axis=1) for t in space.tilings])
    assert tiles.sum(axis=0).max() == 1


def test_scores_of_a_family_are_those_of_its_members(cpu, gpu):
    for family, platform in ((cpu, "cpu-avx2"), (gpu, "v100")):
        analyzer = load_analyzer(CONF, platform)
        space = DecisionSpace(family.dag, family.skeleton, family=family)
        rows = space.sample(40, np.random.default_rng(2))
        found = FamilyScore(family, analyzer)(rows)
        for row, score in zip(rows, found, strict=True):
            member = family.member(tuple(row[family.num_slots :].tolist()))
            own = row[None, : family.num_slots]
            assert DraftScore(family.dag, member, analyzer)(own)[0] == pytest.approx(score)


def test_the_cheap_filter_says_what_the_whole_check_says(gpu):
    analyzer = load_analyzer(CONF, "v100")
    space = DecisionSpace(gpu.dag, gpu.skeleton, family=gpu)
    rows = space.sample(3000, np.random.default_rng(3))
    cheap = np.isfinite(FamilyScore(gpu, analyzer)(rows))
    assert 0 < cheap.sum() < len(rows)
    assert np.array_equal(cheap, LegalPrograms(gpu, analyzer.device)(rows))


def test_what_leaves_the_explorer_passed_the_whole_check(gpu):
    space = DecisionSpace(gpu.dag, gpu.skeleton, family=gpu)
    check = LegalPrograms(gpu, load_analyzer(CONF, "v100").device)
    settings = ExplorerSettings(population=128, generations=1, keep=64)

    def blind(decisions):  # a score that knows no limits
        return np.log2(np.maximum(decisions, 1)).sum(axis=1)

    rng = np.random.default_rng(4)
    unchecked = explore(space, blind, settings, rng)
    assert not check(unchecked.decisions).all()
    checked = explore(space, blind, settings, np.random.default_rng(5), legal=check)
    assert check(checked.decisions).all()
    assert len(checked.decisions) == len(checked.score)


@pytest.mark.parametrize("platform", ["cpu-sse4", "cpu-avx2", "cpu-avx512"])
def test_spaces_hold_every_bundled_program(platform):
    """Also those with rfactor, whose formulas the draft does not have."""
    for path in sorted((BUNDLED / platform).iterdir())[::4]:
        for task in read_tasks(path, Quarantine()):
            dag = find_dag(task.workload_key, task.fused)
            for group in group_programs(task.steps)[0]:
                assert DecisionSpace(dag, group.skeleton).contains(group.decisions).all()


def test_extents_of_splits_by_hand():
    found = split_extents(dag_for_workload(CONV, ()), parse_steps(CPU_STEPS)[0])
    assert list(found.values()) == [1, 4, 8, 8, 4, 3, 3]
    steps = matmul_steps(16, 32, 48, (1, 1, 1, 1), (1, 1, 1, 1), (1, 1))
    gpu = split_extents(matmul_dag(16, 32, 48), parse_steps(steps)[0])
    assert list(gpu.values()) == [16, 48, 32]  # the vector splits of both fetches are no tilings


def test_a_location_that_cannot_be_is_no_member():
    skeleton, _ = parse_steps(CPU_STEPS)
    outside = tuple(
        ComputeAt(1, 3, 1) if isinstance(step, ComputeAt) else step for step in skeleton
    )
    with pytest.raises(UnsupportedProgram, match="attach point"):  # fused into the parallel loop
        Family(dag_for_workload(CONV, ()), outside)
