"""Copies of buffers in software pipelines, counted by hand (inject_software_pipeline.cc)."""

import numpy as np
import pytest

from pruner.program.dag.expr import Axis, Load
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer, Scope
from pruner.program.tir.shared import (
    buffer_versions,
    copies_ahead,
    pipeline_fits,
    waits_are_numbers,
)
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree

SOURCE, SHARED, FRAGMENT, RESULT = range(4)


def copy(target, source):
    var = LoopVar("i", 4)
    block = Block(
        name=f"{source}-{target}",
        iters=(BlockIter("spatial", 4),),
        bindings=[Binding(af.variable(var), {var: 1})],
        buffer=target,
        indices=(Axis(0),),
        value=Load(source, (Axis(0),), "float16"),
    )
    return under(LoopNode(var), block)


def under(loop, *nodes):
    for node in nodes:
        loop.body.append(node)
        node.parent = loop
    return loop


def tree_of(loop, num=1):
    scopes = (Scope.GLOBAL, Scope.SHARED, Scope.MMA_A, Scope.MMA_C)
    buffers = [Buffer(k, str(k), "float16", (4,), scope) for k, scope in enumerate(scopes)]
    return Tree(buffers, under(LoopNode(LoopVar("root")), loop), num_programs=num)


@pytest.mark.parametrize(("stages", "copies"), [((0, 1), 2), ((0, 3), 4)])
def test_a_buffer_is_kept_from_the_stage_that_fills_it_to_the_one_that_reads_it(stages, copies):
    loop = under(LoopNode(LoopVar("k", 8)), copy(SHARED, SOURCE), copy(RESULT, SHARED))
    tree = tree_of(loop)
    assert buffer_versions(tree, loop, SHARED) == 1
    assert copies_ahead(tree) == 0
    loop.annotations = {"software_pipeline_stage": stages}
    assert pipeline_fits(tree, loop)
    assert buffer_versions(tree, loop, SHARED) == copies
    assert copies_ahead(tree) == 0  # stages alone do not make a copy asynchronous
    loop.annotations["software_pipeline_async_stages"] = (0,)
    assert copies_ahead(tree) == stages[-1]


def test_a_pipeline_inside_counts_as_three_statements():
    """Its prologue reads one stage after the copy, its body two, but only where it has one.

    The body runs from the second iteration on, so a loop of one iteration has none.
    """
    steps = LoopNode(LoopVar("k1", np.array([1, 2, 4])))
    under(steps, copy(FRAGMENT, SHARED), copy(RESULT, FRAGMENT))
    steps.annotations = {"software_pipeline_stage": (0, 1)}
    loop = under(LoopNode(LoopVar("k0", 8)), copy(SHARED, SOURCE), steps)
    tree = tree_of(loop)
    loop.annotations = {"software_pipeline_stage": (0, 2)}
    assert not pipeline_fits(tree, loop)
    loop.annotations = {"software_pipeline_stage": (0, 1, 2, 2)}
    assert pipeline_fits(tree, loop)
    assert np.asarray(buffer_versions(tree, loop, SHARED)).tolist() == [2, 3, 3]
    assert buffer_versions(tree, steps, FRAGMENT) == 2


def test_a_reader_before_the_last_stage_needs_as_many_iterations_as_there_are_stages():
    """As in mma programs: fragments are loaded one iteration after the copy, products follow.

    Three programs of 1, 2 and 3 iterations fill the pipeline in two; without a reader in stage 1,
    as on lanes, the loop that fills it waits for nothing.
    """
    for stages, expected in (((0, 1, 2), [False, True, True]), ((0, 2, 2), [True] * 3)):
        loop = LoopNode(LoopVar("k0", np.array([1, 2, 3])))
        under(loop, copy(SHARED, SOURCE), copy(FRAGMENT, SHARED), copy(RESULT, FRAGMENT))
        loop.annotations = {"software_pipeline_stage": stages}
        tree = tree_of(loop, 3)
        assert waits_are_numbers(tree).all()  # copies that nobody waits for
        loop.annotations["software_pipeline_async_stages"] = (0,)
        assert waits_are_numbers(tree).tolist() == expected
