import dataclasses
import itertools
import json
import runpy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruner.data import splits
from pruner.data.frozen import SPLITS_FOLDER, FrozenSplit
from pruner.data.networks import RecordedNetwork
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import SIDES, LeakError, check_no_leak, make_split
from pruner.data.tasks import TaskKey
from pruner.data.workload import parse_workload
from pruner.errors import DataError
from tests.paths import DATASETS

draw_split = runpy.run_path(str(DATASETS / "splits" / "draw.py"))["draw_split"]


def key(op, size, platform="k80", target="cuda", fused=()):
    text = json.dumps([f"{op}_layer", size, 64])
    name = f"{op}_{size}"
    return TaskKey(platform=platform, task=name, workload_key=text, target=target, fused=fused)


def conv(size, padding, platform="k80", fused=()):
    text = json.dumps(["conv2d_layer", 1, size, 14, 14, 8, 3, 3, 1, padding])
    name = "_".join(["conv2d", *fused, str(size), str(padding)])
    return TaskKey(platform=platform, task=name, workload_key=text, target="cuda", fused=fused)


MANY = [
    key(op, size, platform)
    for op, size, platform in itertools.product(
        ["matmul", "batch_matmul", "relu", "pool"], range(1, 26), ["k80", "v100"]
    )
]


@pytest.fixture
def empty(tmp_path):
    return tmp_path


def identities(split, side):
    return {task.identity for task in split.side(side)}


def test_own_records_are_divided_without_a_list_and_by_another_seed_otherwise(empty):
    split = make_split("by_task", MANY, folder=empty)
    assert sorted(split.train + split.valid + split.test) == sorted(MANY)
    shares = [len(split.side(side)) / len(MANY) for side in SIDES]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.08)
    tests = {make_split("by_task", MANY, seed, folder=empty).test for seed in range(5)}
    assert len(tests) == 5
    draws = [FrozenSplit.load("by_task", seed) for seed in range(5)]
    assert len({draw.test for draw in draws}) == 5
    assert len({frozenset(draw.train + draw.valid + draw.test) for draw in draws}) == 1


def test_a_workload_is_on_one_side_whatever_its_spelling_platform_or_fusion(empty):
    family = [
        conv(size, padding, platform, fused)
        for size in range(1, 40)
        for padding, platform in (("SAME", "k80"), ("SAME", "v100"), (1, "mi50"))
        for fused in ((), ("add",), ("add", "relu"))
    ]
    split = make_split("by_task", family, folder=empty)
    for first, second in itertools.combinations(SIDES, 2):
        assert not identities(split, first) & identities(split, second)
    assert len(split.test) % 9 == 0  # all nine relatives of a shape stay together
    assert split.test


def test_a_side_does_not_depend_on_order_or_company(empty):
    whole = make_split("by_task", MANY, folder=empty)
    part = make_split("by_task", MANY[::-1][:80], folder=empty)
    for side in SIDES:
        assert set(part.side(side)) == set(whole.side(side)) & set(
            part.train + part.valid + part.test
        )
    assert whole.fingerprint == make_split("by_task", MANY[::-1], folder=empty).fingerprint
    assert whole.fingerprint != part.fingerprint


@pytest.mark.parametrize("count", [3, 4, 5, 6])
@pytest.mark.parametrize("seed", range(5))
def test_a_few_tasks_still_fill_every_side(empty, count, seed):
    split = make_split(
        "by_task", [key("matmul", size) for size in range(count)], seed, folder=empty
    )
    assert all(split.side(side) for side in SIDES)


def frozen(**sides):
    lists = {side: tuple(task.identity for task in sides.get(side, ())) for side in SIDES}
    return FrozenSplit(name="by_task", seed=0, how="by hand", **lists)


def test_a_frozen_list_decides(empty):
    tasks = [key("matmul", size) for size in range(6)]
    frozen(train=tasks[:2], valid=tasks[2:4], test=tasks[4:]).save(empty)
    split = make_split("by_task", tasks, folder=empty)
    assert (split.train, split.valid, split.test) == (
        *map(tuple, (tasks[:2], tasks[2:4], tasks[4:])),
    )
    split = make_split("by_task", [*MANY, *tasks], folder=empty)
    assert set(tasks[4:]) <= set(split.test)


def test_a_listed_training_workload_is_never_judged(empty):
    tasks = [key("matmul", size) for size in range(6)]
    frozen(train=tasks).save(empty)
    with pytest.raises(DataError, match="no workload of these 6 is on the test side"):
        make_split("by_task", tasks, folder=empty)


def test_a_list_changed_by_hand_does_not_load(empty):
    tasks = [key("matmul", size) for size in range(6)]
    path = frozen(train=tasks[:4], valid=tasks[4:5], test=tasks[5:]).save(empty)
    content = json.loads(path.read_text())
    content["train"].append(content["test"].pop())
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="do not match their sha256"):
        make_split("by_task", tasks, folder=empty)
    path.write_text("{")
    with pytest.raises(DataError, match="not a split file"):
        make_split("by_task", tasks, folder=empty)


def test_lists_are_missed_where_not_installed_and_never_overwritten(empty):
    with pytest.raises(DataError, match="install from a checkout"):
        make_split("by_task", MANY, folder=empty / "absent")
    split = frozen(train=[key("matmul", 1)])
    split.save(empty)
    with pytest.raises(DataError, match="exists and is frozen"):
        split.save(empty)


@pytest.mark.parametrize("path", sorted(SPLITS_FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_lists_load_and_are_disjoint(path):
    name, _, seed = path.stem.partition("-seed")
    split = FrozenSplit.load(name, int(seed or 0))
    sides = [set(split.side(side)) for side in SIDES]
    assert len(set.union(*sides)) == sum(map(len, sides))
    assert all(sides)
    for identity in set.union(*sides):
        assert parse_workload(identity).identity == identity  # canonical spelling


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
    st.integers(0, 1000),
)
def test_a_draw_takes_its_share_of_every_operator(sizes, seed):
    workloads = {
        f"{op}-{n}": (f"op{op}", frozenset({"k80"}))
        for op, size in enumerate(sizes)
        for n in range(size)
    }
    if len(workloads) < 8:
        return
    drawn = draw_split("x", workloads, seed=seed, test=0.2, valid=0.1)
    assert drawn == draw_split("x", workloads, seed=seed, test=0.2, valid=0.1)
    assert sorted(drawn.train + drawn.valid + drawn.test) == sorted(workloads)
    step = len(workloads) / len(drawn.test)
    for op, size in enumerate(sizes):
        held_out = sum(identity.startswith(f"{op}-") for identity in drawn.test)
        # every step-th of a line meets a block of `size` floor or ceil of size / step times
        assert size // step <= held_out <= -(-size // step)


def test_a_draw_leaves_no_platform_untested():
    workloads = {
        f"m{n}": ("matmul", frozenset({"big", "small"} if n < 7 else {"big"})) for n in range(100)
    }
    for seed in range(20):
        test = draw_split("x", workloads, seed=seed, test=0.2, valid=0.1).test
        assert 1 <= sum(identity in {f"m{n}" for n in range(7)} for identity in test) <= 2


def test_a_draw_trains_on_every_operator_that_has_several_workloads():
    """Two of pool would otherwise be held out and checked in some draws."""
    sizes = {"conv2d": 9, "pool": 2, "softmax": 2, "relu": 1}
    workloads = {
        f"{op}-{n}": (op, frozenset({"cpu"})) for op, size in sizes.items() for n in range(size)
    }
    for seed in range(50):
        trained = draw_split("x", workloads, seed=seed, test=0.25, valid=0.17).train
        assert {"conv2d", "pool", "softmax"} <= {identity.split("-")[0] for identity in trained}


def test_by_operator_holds_out_the_operator(empty):
    split = make_split("by_operator", MANY, held_out=["pool"], folder=empty)
    assert {task.workload.short_op for task in split.test} == {"pool"}
    assert {task.workload.short_op for task in split.train + split.valid} == {
        "matmul",
        "batch_matmul",
        "relu",
    }
    assert 0 < len(split.valid) < len(split.train) / 4
    family = make_split("by_operator", MANY, held_out=["matmul"], folder=empty)
    assert {task.workload.short_op for task in family.test} == {"matmul", "batch_matmul"}


def test_by_platform_judges_on_unseen_work_or_on_everything(empty):
    split = make_split("by_platform", MANY, held_out=["v100"], folder=empty)
    by_task = make_split("by_task", MANY, folder=empty)
    assert {task.platform for task in split.test} == {"v100"}
    assert {task.platform for task in split.train + split.valid} == {"k80"}
    assert identities(split, "test") == identities(by_task, "test")
    assert identities(split, "train") == identities(by_task, "train")
    split = make_split("by_platform", MANY, held_out=["v100"], workloads="all", folder=empty)
    assert len(split.test) == 100
    assert len(split.train) + len(split.valid) == 100


def nets(**sizes):
    """Networks that call tasks of `MANY`: operator and size by name, with ``_`` for ``@``."""
    return [
        RecordedNetwork(
            name=name.replace("_", "@"),
            calls={key(op, size).identity: 2 for op, size in tasks},
            kind="cuda",
        )
        for name, tasks in sizes.items()
    ]


NETS = nets(
    small_1=[("matmul", 1), ("pool", 1)],
    small_4=[("matmul", 4)],
    large_1=[("matmul", 1), ("relu", 9)],
)


def test_by_network_holds_out_every_size_and_judges_the_named(empty):
    split = make_split("by_network", MANY, held_out=["small@1"], networks=lambda: NETS)
    assert {(task.task, task.platform) for task in split.test} == {
        (task, platform)
        for task in ("matmul_1", "pool_1", "matmul_4")
        for platform in ("k80", "v100")
    }
    assert [network.name for network in split.networks] == ["small@1"]
    # what the other network shares with it is held out, the rest of it is not
    assert key("relu", 9) in split.train + split.valid
    assert len(split.train) + len(split.valid) == len(MANY) - 6
    assert 0 < len(split.valid) < len(split.train) / 4
    again = make_split("by_network", MANY[::-1], held_out=["small"], networks=lambda: NETS)
    assert again.fingerprint == split.fingerprint
    assert [network.name for network in again.networks] == ["small@1", "small@4"]


def test_every_split_of_tasks_is_checked_and_few_read_networks(empty, monkeypatch):
    def read():
        raise AssertionError("read")

    assert make_split("by_task", MANY, folder=empty, networks=read).networks == ()
    checked = []
    monkeypatch.setattr(splits, "check_no_leak", lambda split: checked.append(split.name))
    make_split("by_task", MANY, folder=empty)
    make_split("by_operator", MANY, held_out=["pool"], folder=empty)
    make_split("by_platform", MANY, held_out=["v100"], folder=empty)
    make_split("by_network", MANY, held_out=["small"], networks=lambda: NETS)
    assert checked == ["by_task", "by_operator", "by_platform", "by_network"]


# one workload is left on k80, and one without pool
FEW = [key("matmul", 1), *(key("pool", size, "v100") for size in (1, 2, 3))]
OPERATORS = "operators here: batch_matmul, matmul, pool, relu"
PLATFORMS = "platforms here: k80, v100; name some, such as"


@pytest.mark.parametrize(
    ("name", "tasks", "options", "message"),
    [
        ("by_networks", MANY, {}, "'by_networks' is unknown; known: by_task"),
        ("by_task", [], {}, "no task given"),
        (
            "by_task",
            [key("matmul", 1), key("matmul", 1, "v100"), key("matmul", 2)],
            {},
            r"2 different workloads, at least 3.*split=within_task",
        ),
        *(
            ("by_operator", MANY, {"held_out": names}, OPERATORS)
            for names in ([], ["conv2d"], ["pool", "rellu"], ["matmul", "relu", "pool"])
        ),
        *(
            ("by_platform", MANY, {"held_out": names}, PLATFORMS)
            for names in ([], ["orin"], ["v100", "orin"], ["k80", "v100"])
        ),
        *(
            (name, tasks, {"held_out": held_out}, message)
            for name, tasks, held_out, message in (
                ("by_operator", FEW, ["pool"], "no workload of these 4 is on the valid side"),
                ("by_platform", FEW, ["v100"], r"of these 4 is on the (valid|train) side; .*less"),
            )
        ),
        *(
            ("by_network", MANY, {"held_out": names, "networks": lambda n=n: n}, message)
            for names, n, message in (
                ([], NETS, "a side would be empty; networks: large@1, small@1, small@4"),
                (["huge"], NETS, "networks huge are not with these records; known: large@1"),
                (["small"], [], "these records have no networks"),
                (["far"], nets(far_1=[("softmax", 1)]), "no records of far@1"),
                (["pruner"], NETS, "networks resnet_50@1x3x224x224, mobilenet_v2"),
            )
        ),
        ("by_platform", MANY, {"held_out": ["k80"], "workloads": "some"}, "known: unseen, all"),
    ],
)
def test_wrong_settings_are_told(empty, name, tasks, options, message):
    with pytest.raises(DataError, match=message):
        make_split(name, tasks, folder=empty, **options)


def test_the_leak_check_sees_a_leak(empty):
    split = make_split("by_task", MANY, folder=empty)
    check_no_leak(split)
    # the same shape, measured elsewhere, moves to the other side
    moved = dataclasses.replace(split.test[0], platform="mi50", target="rocm")
    with pytest.raises(LeakError, match="two sides of the split"):
        check_no_leak(dataclasses.replace(split, train=(*split.train, moved)))


def test_within_task_divides_rows(data_root, write, line):
    lines = [line(tile) for tile in range(1, 2001)]
    path = write("measure_records/b/matmul_16_1024_1024.json", lines)
    tasks = list(RecordRoot(data_root).read(Quarantine()))
    split = make_split("within_task", [task.key for task in tasks])
    assert split.by_rows
    (big,) = (task for task in tasks if task.file == str(path))
    masks = [split.rows(side, big.key, big.digest) for side in SIDES]
    assert np.array_equal(np.sum(masks, axis=0), np.ones(2000))
    assert [mask.mean() for mask in masks] == pytest.approx([0.7, 0.1, 0.2], abs=0.04)
    # not the first rows, but spread over the search
    assert masks[2][:1000].mean() == pytest.approx(masks[2][1000:].mean(), abs=0.05)


def test_the_same_program_is_on_the_same_side_everywhere(write, line):
    lines = [line(tile) for tile in range(1, 200)]
    root = write("measure_records/k80/matmul.json", lines).parents[2]
    write("measure_records/v100/matmul.json", [line(n, target="rocm") for n in range(200, 0, -1)])
    one, other = RecordRoot(root).read(Quarantine())
    split = make_split("within_task", [one.key, other.key])
    test = set(one.digest[split.rows("test", one.key, one.digest)].tolist())
    elsewhere = set(other.digest[split.rows("test", other.key, other.digest)].tolist())
    assert test
    assert test <= elsewhere
    assert len(elsewhere - test) <= 1  # the one program that only the other platform measured


def test_rows_of_a_task_split_are_all_or_none(empty):
    split = make_split("by_task", MANY, folder=empty)
    digest = np.arange(5, dtype=np.uint64)
    assert split.rows("test", split.test[0], digest).all()
    assert not split.rows("train", split.test[0], digest).any()
