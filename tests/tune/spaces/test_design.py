"""MetaSchedule's spaces of a module, and what is asked of them without effect."""

import pytest

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def pooling():
    """As TVM's own operator makes it, with a wish for a rule that no target has."""
    import tvm
    from tvm import te, topi

    from pruner.tune.workloads import normalised

    data = te.placeholder((1, 8, 12, 12), name="data")
    out = topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max")
    return normalised(tvm.IRModule({"main": te.create_prim_func([data, out])}))


def space_texts(designs):
    from pruner.tune.tvm_import import load_tvm

    s_tir = load_tvm().s_tir
    return ["\n".join(s_tir.Trace(d.trace.insts, {}).as_python(True)) for d in designs]


def test_pooling_has_the_spaces_that_tvm_warns_of_without_the_warning(pooling, capfd):
    from pruner.tune.spaces.design import design_spaces
    from pruner.tune.tvm_import import load_tvm

    tvm, _, _, ms = load_tvm()
    target = tvm.target.Target({"kind": "llvm", "num-cores": 2})
    context = ms.TuneContext(
        mod=pooling, target=target, space_generator="post-order-apply", num_threads=1
    )
    theirs = context.generate_design_space()  # first, before TVM is told of the rule
    assert "pool_max" in capfd.readouterr().err
    ours = design_spaces(pooling, target)
    assert capfd.readouterr().err == ""
    assert space_texts(ours) == space_texts(theirs)
    assert len(ours) == 3


def test_rules_that_tvm_has_stay_as_they_are(pooling):
    import tvm_ffi

    from pruner.tune.spaces.rules import provide_rules
    from pruner.tune.tvm_import import load_tvm

    tvm, s_tir, _, _ = load_tvm()
    known, new = "conv2d_nchw_winograd_inverse", "meta_schedule.pool_of_a_test"
    schedule = s_tir.Schedule(pooling)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.unannotate(blocks[-1], "schedule_rule")
    for block, rule in zip(blocks, (known, new), strict=True):
        schedule.annotate(block, "schedule_rule", rule)
    name = "s_tir.meta_schedule.cpu."
    before = tvm_ffi.get_global_func(name + known)
    provide_rules(schedule.mod, tvm.target.Target({"kind": "llvm", "num-cores": 2}))
    assert tvm_ffi.get_global_func(name + known).same_as(before)
    assert tvm_ffi.get_global_func(name + new, allow_missing=True) is not None
