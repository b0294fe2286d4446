"""Design spaces as files: what is read back schedules to the same programs."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from pruner.errors import UnsupportedProgram
from pruner.features import batch
from pruner.features.batch import (
    featurize,
    featurize_nests,
    featurize_records,
    featurize_traces,
)
from pruner.features.columns import text_flags
from pruner.program.index import affine as af
from pruner.program.replay import Definitions, find_definition, replay
from pruner.program.te import skeleton
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.lower import lower
from pruner.program.tir.saved import SavedSpace, SpaceFolder, load_space
from pruner.program.tir.trace import Instruction, Ref, TraceProgram
from pruner.program.tir.tree import Binding
from tests.features.matmul_skeleton import matmul_steps
from tests.program.tir_trees import blurred, matmul

TEXT = "C(i, j) += (A[i, k]*B[k, j])\n"


def location_space(size=64, *, jobs=None, lanes=None):
    """Where ``mid`` is computed, and how the loop of ``out`` is tiled.

    ``jobs``, ``lanes``: annotated numbers of the parallel loops and of the vectors.
    """
    tree, _, _ = blurred(size)
    instructions = (
        Instruction("GetSBlock", (), ("mid", "main"), (0,)),
        Instruction("GetSBlock", (), ("out", "main"), (1,)),
        Instruction("GetLoops", (Ref(1),), (), (2,)),
        Instruction("SamplePerfectTile", (Ref(2),), (2, 16), (3, 4), slot=0),
        Instruction("Split", (Ref(2), Ref(3), Ref(4)), (1, 0), (5, 6)),
        Instruction("SampleComputeLocation", (Ref(0),), (), (7,), slot=2),
        Instruction("ComputeAt", (Ref(0), Ref(7)), (1, -1), ()),
    )
    if jobs is not None:
        instructions += (
            Instruction("GetSBlock", (), ("root", "main"), (8,)),
            Instruction("Annotate", (Ref(8), jobs), ("meta_schedule.parallel",), ()),
            Instruction("Annotate", (Ref(8), lanes), ("meta_schedule.vectorize",), ()),
        )
    program = TraceProgram(tree, instructions, num_slots=3, is_gpu=False)
    return SavedSpace(program=program, text=TEXT)


DECISIONS = np.array([[8, 8, -2], [4, 16, -1], [16, 4, 0], [4, 16, -1], [32, 2, 1]])


def steps_of(name, decisions=DECISIONS):
    return [[["MS", name, row]] for row in decisions.tolist()]


def test_what_is_read_back_is_what_was_saved(tmp_path):
    saved = location_space()
    name = saved.save(tmp_path)
    assert name == saved.name
    assert name.isalpha()
    read = SpaceFolder(tmp_path).space(name)
    assert read.content == saved.content
    assert read.program.instructions == saved.program.instructions


def test_features_of_traces_are_those_of_their_nests(tmp_path):
    saved = location_space()
    name = saved.save(tmp_path)
    found = featurize(SpaceFolder(tmp_path), steps_of(name))
    groups, refused = apply_groups(saved.program, DECISIONS)
    nests = [(rows, lower(tree)) for rows, tree in groups]
    wanted = featurize_nests(nests, len(DECISIONS), workload=text_flags(TEXT), failures=refused)
    assert found.valid.tolist() == wanted.valid.tolist() == [True] * 5
    np.testing.assert_array_equal(found.statement, wanted.statement)
    np.testing.assert_array_equal(found.row_start, wanted.row_start)
    np.testing.assert_array_equal(found.workload, wanted.workload)
    assert found.num_statements.tolist() == [1, 2, 2, 2, 2]  # inlined: one store less


@pytest.mark.parametrize("make", [lambda: blurred(8)[0], lambda: matmul(4, 8, 16)[0]])
def test_trees_are_read_back_with_bindings_and_reductions(make, tmp_path):
    program = TraceProgram(make(), (), num_slots=0, is_gpu=False)
    name = SavedSpace(program=program, text="").save(tmp_path)
    read = load_space(tmp_path / f"{name}.json.gz").program
    nothing = np.zeros((1, 0), np.int64)
    (rows, ours), (_, wanted) = (apply_groups(p, nothing)[0][0] for p in (read, program))
    features = [
        featurize_nests([(rows, lower(tree))], 1, workload=text_flags(""), failures={})
        for tree in (ours, wanted)
    ]
    np.testing.assert_array_equal(features[0].statement, features[1].statement)
    assert features[0].valid.all()


@pytest.mark.parametrize("scale", [2, 0])
def test_a_tree_that_has_no_form_is_not_saved_as_another(scale, tmp_path):
    """An iterator may be a multiple or a quotient of a loop; the file has loops alone."""
    tree, block = matmul(4, 8, 16)
    (var,) = block.bindings[0].uses
    block.bindings[0] = Binding(af.variable(var), {var: scale})
    program = TraceProgram(tree, (), num_slots=0, is_gpu=False)
    with pytest.raises(UnsupportedProgram, match="unsaved-value"):
        SavedSpace(program=program, text="").save(tmp_path)


def test_programs_that_do_not_fit_cost_themselves(tmp_path):
    name = location_space().save(tmp_path)
    steps = [
        *steps_of(name, DECISIONS[:1]),
        [["MS", name, [8, 8]]],  # a decision is missing
        [["MS", "nobody", [8, 8, -2]]],
        [["MS", "../nobody", [8, 8, -2]]],
        [["CI", 1]],
    ]
    done = replay(SpaceFolder(tmp_path), steps, lambda nests: nests.num_programs)
    assert [(rows.tolist(), num) for rows, num in done.parts] == [([0], 1)]
    assert done.failures[1] == "malformed-step"
    assert done.failures[2] == done.failures[3] == "unknown-design-space"
    assert done.failures[4] == "no-trace"
    assert set(done.failures) == {1, 2, 3, 4}


def test_decisions_that_no_trace_takes_cost_their_program_alone(tmp_path):
    program = location_space().program
    unroll = Instruction("SampleCategorical", (), ((0, 16), (0.5, 0.5)), (8,), slot=3)
    program = replace(program, instructions=(*program.instructions, unroll), num_slots=4)
    name = SavedSpace(program=program, text=TEXT).save(tmp_path)
    decisions = np.array([[8, 8, -2, 1], [8, 8, -2, 2], [4, 16, -1, -1], [0, 16, -1, 0]])
    done = replay(SpaceFolder(tmp_path), steps_of(name, decisions), lambda nests: None)
    assert [rows.tolist() for rows, _ in done.parts] == [[0]]
    assert done.failures == dict.fromkeys([1, 2, 3], "bad-decision")


def test_what_is_uncertain_of_buffers_alone_is_refused(tmp_path, monkeypatch):
    """On GPUs nobody asks where buffers live before the nests are made."""

    def told_late(tree):
        if tree.num_programs == 2:
            tree.uncertain = np.array([False, True])

    monkeypatch.setattr("pruner.program.replay.buffer_scopes", told_late)
    name = location_space().save(tmp_path)
    steps = steps_of(name, DECISIONS[[1, 3]])
    done = replay(SpaceFolder(tmp_path), steps, lambda nests: nests.num_programs)
    assert [(rows.tolist(), num) for rows, num in done.parts] == [([0], 1)]
    assert done.failures == {1: "uncertain-region"}


def test_traces_without_their_spaces_are_refused_with_the_reason():
    with pytest.raises(UnsupportedProgram, match="no-design-spaces"):
        find_definition('["matmul_layer", 2, 2, 2]', (), steps_of("a"), Definitions())


def test_decisions_that_decide_nothing_cost_themselves(tmp_path):
    """Factors that do not multiply to their loop's 64 iterations; others stay as they are."""
    name = location_space().save(tmp_path)
    wrong = np.array([[8, 9, 0], [64, 0, -2], [-1, -64, -1], [128, 1, 0], [2**31, 2**31, -1]])
    mixed = np.concatenate([DECISIONS[:2], wrong, DECISIONS[2:]])
    found = featurize(SpaceFolder(tmp_path), steps_of(name, mixed))
    assert found.failures == dict.fromkeys(range(2, 7), "bad-decision")
    alone = featurize(SpaceFolder(tmp_path), steps_of(name))
    assert found.valid.tolist() == [True] * 2 + [False] * 5 + [True] * 3
    np.testing.assert_array_equal(found.take(found.valid).statement, alone.statement)


def test_a_candidate_is_one_that_is_there(tmp_path):
    tree, _, _ = blurred(64)
    instructions = (
        Instruction("GetSBlock", (), ("out", "main"), (0,)),
        Instruction("SampleCategorical", (), ((0, 16, 64), (0.5, 0.25, 0.25)), (1,), slot=0),
        Instruction("Annotate", (Ref(0), Ref(1)), ("meta_schedule.unroll_explicit",), ()),
    )
    program = TraceProgram(tree, instructions, num_slots=1, is_gpu=False)
    name = SavedSpace(program=program, text=TEXT).save(tmp_path)
    found = featurize(SpaceFolder(tmp_path), steps_of(name, np.array([[2], [-1], [3], [0]])))
    assert found.valid.tolist() == [True, False, False, True]
    assert set(found.failures.values()) == {"bad-decision"}


def test_traces_are_compared_with_those_of_their_space_alone(monkeypatch):
    """Thousands of spaces in one task must not cost their square."""
    asked, conditions = [], skeleton._conditions
    monkeypatch.setattr(
        skeleton,
        "_conditions",
        lambda first, rows, *out: asked.append(len(rows)) or conditions(first, rows, *out),
    )
    names = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    rows = [[["MS", name, values]] for name in names for values in ([1, 2], [3, 4], [5])]
    groups, failures = skeleton.group_programs([*rows, [["CI", 1]], [["MS"]]])
    # all programs once, the step without fields with CI, and CI without it
    assert sum(asked) == len(rows) + 2 + 1
    assert set(failures) == {len(rows) + 1}
    assert sorted(len(group.rows) for group in groups) == [1] * 101 + [2] * 100
    assert groups[0].decisions.tolist() == [[1, 2], [3, 4]]


def test_a_trace_among_steps_of_ansors_costs_itself(tmp_path):
    ansor = matmul_steps(128, 128, 128, (1, 8, 2, 2), (1, 8, 2, 2), (4, 2))
    key, trace = '["matmul_layer", 128, 128, 128]', steps_of("a")[0]
    found = featurize_records(key, (), [trace, ansor, ansor], tasks=Definitions())
    assert found.valid.tolist() == [False, True, True]
    assert found.failures == {0: "step-mismatch"}
    spaces = SpaceFolder(tmp_path)
    name = location_space().save(tmp_path)
    mixed = [*steps_of(name), ansor]
    found = featurize_records(key, (), mixed, tasks=Definitions(spaces=spaces))
    assert found.valid.tolist() == [True] * 5 + [False]


def test_spaces_that_differ_in_annotated_numbers_share_their_trees(tmp_path):
    numbers = [(4, 16), (64, 64), (16, 1), (4, 16)]
    spaces = [location_space(jobs=jobs, lanes=lanes) for jobs, lanes in numbers]
    spaces += [location_space(), location_space(128, jobs=4, lanes=16)]
    assert [one.structure for one in spaces[1:4]] == [spaces[0].structure] * 3
    assert len({one.structure for one in spaces}) == 3
    folder, wide = SpaceFolder(tmp_path), DECISIONS * [2, 1, 1]
    tasks = [steps_of(one.save(tmp_path)) for one in spaces[:5]]
    tasks.append(steps_of(spaces[5].save(tmp_path), wide))
    tasks[1][2] = ["no trace"]
    together = featurize_traces(folder, tasks)
    trees = replay(folder, [steps for task in tasks[:4] for steps in task], lambda nests: nests)
    alone = replay(folder, tasks[0], lambda nests: nests)
    assert len(trees.parts) == len(alone.parts)
    for found, task in zip(together, tasks, strict=True):
        wanted = featurize(SpaceFolder(tmp_path), task)
        assert found.failures == wanted.failures
        for name in ("statement", "row_start", "dataflow", "workload", "valid"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    assert not np.array_equal(together[0].statement, together[2].statement)  # other vectors


@pytest.mark.parametrize("broken", ["start", "send"])
def test_features_need_no_second_process(tmp_path, monkeypatch, broken):
    def fails(worker, *_):
        if broken == "send":
            worker.retire()  # it ended before its job came
        raise OSError("no memory")

    tasks = [steps_of(location_space(number).save(tmp_path)) for number in (64, 128)]
    wanted = featurize_traces(SpaceFolder(tmp_path), tasks)
    monkeypatch.setattr(batch, "_WORTH_A_WORKER", 1)
    monkeypatch.setattr(batch.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(batch.Worker, broken, fails)
    for one, two in zip(wanted, featurize_traces(SpaceFolder(tmp_path), tasks), strict=True):
        np.testing.assert_array_equal(one.statement, two.statement)


@pytest.mark.parametrize("odd", [("meta_schedule.parallel", 2**70), ()])
def test_an_odd_space_beside_others_changes_nothing_for_them(tmp_path, odd):
    """A number that no decision holds, and an annotation without a name."""
    good, odd_one = location_space(jobs=4, lanes=16), location_space(jobs=4, lanes=16)
    *before, last = odd_one.program.instructions
    attrs, number = odd[:1], odd[1] if odd else 4
    annotated = replace(last, inputs=(last.inputs[0], number), attrs=attrs)
    program = replace(odd_one.program, instructions=(*before, annotated))
    names = [good.save(tmp_path), replace(odd_one, program=program).save(tmp_path)]
    together = featurize_traces(SpaceFolder(tmp_path), [steps_of(name) for name in names])
    for found, name in zip(together, names, strict=True):
        wanted = featurize(SpaceFolder(tmp_path), steps_of(name))
        assert found.failures == wanted.failures
        np.testing.assert_array_equal(found.statement, wanted.statement)
    assert together[0].valid.all()


def test_a_foreign_space_does_not_decide_the_flags_of_a_task(tmp_path):
    name = location_space().save(tmp_path)
    other = SavedSpace(program=location_space().program, text="max(a, b)\n").save(tmp_path)
    mixed = [*steps_of(name), steps_of(other)[0]]
    found = featurize(SpaceFolder(tmp_path), mixed)
    np.testing.assert_array_equal(found.workload, text_flags(TEXT))


def changed(**fields):
    return lambda text: json.dumps({**json.loads(text), **fields}).encode()


def with_first(name, place, value):
    """The first item of a list of the file, one of its members replaced."""

    def change(text):
        whole = json.loads(text)
        whole[name][0][place] = value
        return json.dumps(whole).encode()

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b'"v":1', b'"v":2'),
        lambda text: text.replace(b'"mul"', b'"pow"'),
        lambda text: b"[]",
        changed(body=3),
        changed(body=[{"loop": ["i", 2], "body": []}] * 2049),
        changed(instructions=[["GetLoops", [], [], [], -1]] * 4097),
        changed(num_slots=10**6),
        changed(num_slots=-1),
        changed(known=[[0, -1]]),
        with_first("instructions", 4, -2),
        with_first("buffers", 2, [2**31 + 1]),
        with_first("buffers", 2, [-64]),
        lambda text: text.replace(b'["load",0,', b'["load",-1,'),
        lambda text: text.replace(b'["axis",0,', b'["axis",-1,'),
        lambda text: text.replace(b'["loop",0]', b'["loop",-1]'),
        lambda text: text.replace(b'"reads":[0]', b'"reads":[-1]'),
    ],
)
def test_a_damaged_file_costs_its_programs(damage, tmp_path):
    content = location_space().content
    path = tmp_path / "abc.json.gz"
    path.write_bytes(gzip.compress(content))
    assert load_space(path).content == content
    assert damage(content) != content
    path.write_bytes(gzip.compress(damage(content)))
    with pytest.raises(UnsupportedProgram, match="bad-design-space"):
        load_space(path)


def test_every_flipped_bit_of_a_packed_space_is_a_reason(tmp_path):
    """Zlib has errors of its own for what it cannot unpack."""
    path, packed = tmp_path / "abc.json.gz", gzip.compress(location_space().content, mtime=0)
    found = set()
    for place in range(10, 60):
        for bit in range(8):
            damaged = bytearray(packed)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                load_space(path)
            except UnsupportedProgram as error:
                found.add(error.reason)
    assert found == {"bad-design-space"}


def test_a_space_has_the_content_that_its_name_says(tmp_path):
    name = location_space().save(tmp_path)
    path = tmp_path / f"{name}.json.gz"
    other = json.loads(location_space().content) | {"text": "another"}
    path.write_bytes(gzip.compress(json.dumps(other).encode()))
    load_space(path)  # a whole space
    with pytest.raises(UnsupportedProgram, match="its name is not its hash"):
        SpaceFolder(tmp_path).space(name)


def test_a_refusal_asked_for_often_keeps_no_callers(tmp_path):
    spaces, found = SpaceFolder(tmp_path), []
    for _ in range(3):
        with pytest.raises(UnsupportedProgram) as error:
            spaces.space("nobody")
        found.append(len(error.traceback))
    assert found[0] >= found[1] == found[2]
