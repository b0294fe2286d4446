"""Records are applied to every function that has one, first come first served, or an error."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.deploy import apply_records as module
from pruner.tune.deploy.apply_records import apply_records, check_tasks, keys_of
from pruner.tune.run.database import Database
from pruner.tune.tvm_import import load_tvm
from tests.tune.networks import lowered as networks
from tests.tune.targets import A100, target_of

pytestmark = pytest.mark.tvm


@pytest.fixture(scope="module")
def target():
    return target_of(1)


@pytest.fixture(scope="module")
def lowered():
    return networks.lowered("encoder")


@pytest.fixture(scope="module")
def tasks():
    return {task.name: task for task in networks.tasks_of("encoder")}


def commit(folder, task, target, mark="any", seconds=1.0):
    """A record of the task's program as it is, with an annotation to know it again."""
    schedule = load_tvm().s_tir.Schedule(task.module)
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.annotate(block, "mark", mark)
    Database(folder).commit(task.module, schedule, (seconds,), target)


def chosen(tasks, word):
    return [task for task in tasks.values() if task.name.startswith(word)]


def test_functions_have_the_keys_of_the_tasks(lowered, tasks):
    """The hash by which TVM looks up survives extraction, printing and reading back."""
    keys = keys_of(lowered)
    wanted = {name: task.key for name, task in tasks.items()}
    assert set(keys.values()) == set(wanted.values())
    check_tasks(keys, wanted)
    ir, hashed = load_tvm().tvm.ir, load_tvm().ffi.structural_hash
    for task in tasks.values():
        again = ir.load_json(ir.save_json(task.module))
        assert f"{hashed(again) & (1 << 64) - 1:016x}" == task.key
    first, *_ = sorted(wanted)
    with pytest.raises(PrunerError, match=rf"1 tuned tasks are gone \({first}\); 1 functions"):
        check_tasks(keys, {**wanted, first: "0" * 16})


def test_what_was_measured_comes_before_what_was_drafted(lowered, tasks, target, tmp_path):
    products, sums = chosen(tasks, "matmul"), chosen(tasks, "reshape_add")
    measured, drafted = tmp_path / "measured", tmp_path / "drafted"
    for folder in (measured, drafted):
        folder.mkdir()
    for task in products[:2]:
        commit(measured, task, target, "mine")
    for task in [*products, *sums]:
        commit(drafted, task, target, "other", seconds=1e-9)
    sources = {"measured": measured, "drafted": drafted}
    module, applied = apply_records(lowered, target, sources, by_rules=False)
    rest = len(products) - 2 + len(sums)
    assert applied.by_source == {"measured": 2, "drafted": rest}
    assert len(applied.untouched) == len(tasks) - 2 - rest
    text = module.script()
    assert text.count('"mark": "mine"') == 2
    assert text.count('"mark": "other"') == rest


def test_no_record_is_lost_or_of_another_target(lowered, tasks, target, tmp_path, monkeypatch):
    own, others = tmp_path / "own", tmp_path / "others"
    for folder, device in ((own, target), (others, target_of(4))):
        folder.mkdir()
        commit(folder, chosen(tasks, "matmul")[0], device)
    with pytest.raises(PrunerError, match="records of another target"):  # TVM would apply them
        apply_records(lowered, target, {"measured": others}, by_rules=False)
    monkeypatch.setattr(module, "_applied", lambda module, *_: module)
    with pytest.raises(PrunerError, match=r"did not apply the records of fused_matmul.*1 of 1"):
        module.apply_records(lowered, target, {"measured": own}, by_rules=False)


def test_on_a_gpu_rules_of_tvm_schedule_the_rest(lowered, tmp_path):
    _, applied = apply_records(lowered, target_of(A100), {}, by_rules=True)
    assert applied.by_rules + len(applied.untouched) == len(lowered.functions_items()) - 1
    assert all(name.startswith("reshape") for name in applied.untouched)  # views
