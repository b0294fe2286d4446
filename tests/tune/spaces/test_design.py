"""MetaSchedule's spaces of a module, and what is asked of them without effect."""

import numpy as np
import pytest

from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.design import default_rules, design_spaces, provide_rules
from pruner.tune.tvm_import import load_intrinsics, load_tvm
from pruner.tune.workloads import from_operator, normalised
from tests.tune.some_slow import some_slow
from tests.tune.targets import A100, module_of, target_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def pooling():
    """As TVM's own operator makes it, with a wish for a rule that no target has."""
    te, topi = load_tvm().tvm.te, load_tvm().tvm.topi
    data = te.placeholder((1, 8, 12, 12), name="data")
    out = topi.nn.pool2d(data, [3, 3], [2, 2], [1, 1], [1, 1, 1, 1], "max")
    return normalised(module_of([data, out]))


def space_texts(designs):
    s_tir = load_tvm().s_tir
    return ["\n".join(s_tir.Trace(d.trace.insts, {}).as_python(True)) for d in designs]


def test_pooling_has_the_spaces_that_tvm_warns_of_without_the_warning(pooling, capfd):
    _, s_tir, _, ms = load_tvm()
    target, schedule = target_of(2), s_tir.Schedule(pooling)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[-1]
    schedule.unannotate(block, "schedule_rule")
    wish = "meta_schedule.pool_max_of_this_test"  # TVM was told of pool_max by other tests
    schedule.annotate(block, "schedule_rule", wish)
    context = ms.TuneContext(
        mod=schedule.mod, target=target, space_generator="post-order-apply", num_threads=1
    )
    theirs = context.generate_design_space()  # first, before TVM is told of the rule
    assert wish in capfd.readouterr().err
    ours = design_spaces(schedule.mod, target)
    assert capfd.readouterr().err == ""
    assert space_texts(ours) == space_texts(theirs)
    assert len(ours) == 3


@pytest.mark.parametrize("target", [2, A100])
def test_a_module_of_equal_text_has_equal_spaces(pooling, target):
    """So runs can be resumed, and the tests of runs generate the spaces of a text once."""
    ir = load_tvm().tvm.ir
    again = ir.load_json(ir.save_json(pooling))
    first, second = (design_spaces(module, target_of(target)) for module in (pooling, again))
    assert first
    assert space_texts(first) == space_texts(second)
    # with what the rules drew, which a fixed seed decides
    assert [str(one.trace) for one in first] == [str(one.trace) for one in second]


def test_rules_that_tvm_has_stay_as_they_are(pooling):
    find = load_tvm().ffi.get_global_func
    known, new = "conv2d_nchw_winograd_inverse", "meta_schedule.pool_of_a_test"
    schedule = load_tvm().s_tir.Schedule(pooling)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.unannotate(blocks[-1], "schedule_rule")
    for block, rule in zip(blocks, (known, new), strict=True):
        schedule.annotate(block, "schedule_rule", rule)
    name = "s_tir.meta_schedule.cpu."
    before = find(name + known)
    provide_rules(schedule.mod, target_of(2))
    assert find(name + known).same_as(before)
    assert find(name + new, allow_missing=True) is not None


def convolution(image, channels, kernel=3):
    """Half precision, with bias: image * image rows, that TVM pads to a multiple of 16."""
    conv = {"n": 1, "ci": 32, "h": image, "w": image, "co": channels, "stride": 1}
    spec = {"operator": "conv2d", **conv, "kh": kernel, "kw": kernel, "epilogue": ["bias"]}
    spec["padding"] = kernel // 2
    return from_operator({**spec, "dtype": "float16"}).module


def made_by(module, target, rules, draws=1):
    """What TVM makes of each draw of random tiles; None where it raises."""
    _, s_tir, _, ms = load_tvm()
    load_intrinsics(target)
    kinds = {"sch_rules": rules, "postprocs": rules, "mutator_probs": rules}
    how = {"space_generator": ms.space_generator.PostOrderApply(**kinds), "num_threads": 1}
    context = ms.TuneContext(mod=module, target=target, rand_state=1, **how)
    out = []
    for _ in range(draws):
        try:
            out.append(context.generate_design_space())
        except (s_tir.ScheduleError, RuntimeError):
            out.append(None)
    return out


TURING = "nvidia/geforce-rtx-2080-ti"


@some_slow(("gpu", "image", "kernel"), [(A100, 3, 3), (A100, 1, 1)], [(TURING, 3, 3)])
def test_a_task_whose_tiles_stop_tvm_on_tensor_cores_has_spaces_of_lanes(gpu, image, kernel, capfd):
    """9 rows are one fragment of 16: there are no other tiles of rows to draw; 1 has no loop."""
    target, module = target_of(gpu), convolution(image, 64, kernel)
    assert made_by(module, target, "from-target", 3) == [None] * 3
    ours = design_spaces(module, target)
    assert space_texts(ours) == space_texts(made_by(module, target, "cuda")[0])
    rules, fitting = default_rules(module, target)
    assert (rules, str(fitting)) == ("cuda", str(ours[0].target))
    space = BatchedSpace(ours[0])
    rows = space.sample(2, np.random.default_rng(0))
    assert all(ours[0].replay(row, 1) is not None for row in rows)
    assert capfd.readouterr().err == ""


def test_tiles_that_stop_tvm_are_drawn_again():
    """196 rows in 13 fragments, 16 columns in one: it takes a second loop over rows."""
    target, module = target_of(A100), convolution(14, 16)
    first, *others = made_by(module, target, "from-target", 8)
    assert first is None
    theirs = next(made for made in others if made is not None)
    texts = space_texts(design_spaces(module, target))
    assert texts[: len(theirs)] == space_texts(theirs)
    assert texts[len(theirs) :] == space_texts(made_by(module, target, "cuda")[0])
    assert default_rules(module, target) == ("from-target", target)


def test_a_program_is_the_same_after_others_and_as_from_a_schedule_of_its_own(pooling):
    """All start from copies of one schedule; what TVM draws itself follows the seed alone."""
    tvm, s_tir, _, _ = load_tvm()
    design = design_spaces(pooling, target_of(A100))[-1]
    own = s_tir.Schedule(pooling, seed=5, debug_mask=0, error_render_level="none")
    s_tir.Trace(design.trace.insts, {}).apply_to_schedule(own, remove_postproc=True)
    own.enter_postproc()
    assert all(step.apply(own) for step in design.context.space_generator.postprocs)
    design.replay(None, 4)
    for _ in range(2):
        again = design.replay(None, 5)
        tvm.ir.assert_structural_equal(again.mod, own.mod)
        assert str(again.trace) == str(own.trace)
