"""Networks beside records: whose tasks they call how often, and which are named."""

import json

import pytest

from pruner.data import networks as module
from pruner.data.networks import HELD_OUT, RecordedNetwork, chosen_networks, networks_of
from pruner.data.tasks import TaskKey
from pruner.data.tenset.task_pickle import PickledTask
from pruner.errors import DataError
from tests.program.tenset_tasks import unpack_network_info


def key(workload_key, platform="k80", target="cuda -keys=cuda,gpu"):
    return TaskKey(platform=platform, task="t", workload_key=workload_key, target=target)


@pytest.fixture
def tenset(tmp_path, monkeypatch):
    """A data root with task files of these names and tasks, without TVM's way to pickle them."""

    def make(files):
        (tmp_path / "network_info").mkdir()
        for name in files:
            (tmp_path / "network_info" / name).touch()

        def read(path):
            target, calls = files[path.name]
            return [
                PickledTask(workload_key=each, target=target, weight=n, compute_dag="")
                for each, n in calls
            ]

        monkeypatch.setattr(module, "read_task_pickle", read)
        return tmp_path

    return make


def own(root, platform, name, rows):
    folder = root / "networks" / platform / name
    folder.mkdir(parents=True)
    (folder / "tasks.json").write_text(json.dumps(rows))


def test_tasks_of_tenset_weigh_as_often_as_they_are_called(tenset):
    first, second = f'["{"a" * 32}", 1, 64]', f'["{"b" * 32}", 1]'
    root = tenset(
        {
            "((resnet_50,[(1,3,224,224)]),cuda).task.pkl": (
                "cuda -keys=cuda,gpu",
                [(first, 3), (second, 1), (first, 2)],
            ),
            "((pair,[(1,128),(8,)]),llvm).task.pkl": ("llvm -keys=cpu", [(first, 7)]),
            "mine.task.pkl": ("cuda", [(second, 1)]),
        }
    )
    pair, resnet, mine = networks_of(root)
    assert [n.name for n in (pair, resnet, mine)] == [
        "pair@1x128+8",
        "resnet_50@1x3x224x224",
        "mine",
    ]
    assert (resnet.family, resnet.kind, pair.kind) == ("resnet_50", "cuda", "llvm")
    assert resnet.weight(key(first)) == 5
    # the same key with other spaces, on another platform of the kind
    assert resnet.weight(key(first.replace(", ", ","), "t4")) == 5
    assert resnet.weight(key(second)) == 1
    assert resnet.weight(key(first, target="llvm -mcpu=core-avx2")) == 0
    assert pair.weight(key(first, target="llvm -mcpu=core-avx2")) == 7
    assert pair.weight(key(second, target="llvm")) == 0


def test_tasks_of_our_own_lists_are_those_of_their_platform(tmp_path):
    rows = [{"key": "00ff00ff00ff00ff", "weight": 4, "name": "conv2d_00ff", "flops": 1.0}]
    own(tmp_path, "cpu-avx2", "resnet18", rows)
    (found,) = networks_of(tmp_path)
    records = '["tir", "00ff00ff00ff00ff"]'
    assert (found.name, found.family) == ("resnet18", "resnet18")
    assert found.weight(key(records, "cpu-avx2", '{"kind": "llvm"}')) == 4
    assert found.weight(key(records, "cpu-avx512", '{"kind": "llvm"}')) == 0


def test_the_list_is_the_file_that_tuning_writes():
    extraction = pytest.importorskip("pruner.tune.networks.extraction")
    assert extraction.TASKS == module.TASKS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"key": "a"}], "no list of tasks"),
        (3, "no list of tasks"),
        ([{"key": "a", "weight": 0}], "called 0 times"),
        ([{"key": "a", "weight": "2"}], "called '2' times"),
    ],
)
def test_damaged_lists_are_told(tmp_path, rows, message):
    own(tmp_path, "k80", "net", rows)
    with pytest.raises(DataError, match=message):
        networks_of(tmp_path)


def test_a_root_without_networks_has_none_and_one_of_two_kinds_is_refused(tmp_path, tenset):
    assert networks_of(tmp_path) == ()
    root = tenset({"x.task.pkl": ("", [])})
    with pytest.raises(DataError, match=r"x\.task\.pkl: tasks of one kind of target"):
        networks_of(root)


NETWORKS = [
    RecordedNetwork(name=name, calls={"a": 1})
    for name in ("net@1x3", "net@4x3", "other@1x3", "resnet18", *HELD_OUT["pruner"])
]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["net@4x3"], ["net@4x3"]),
        (["net"], ["net@1x3", "net@4x3"]),
        (["resnet18", "other"], ["other@1x3", "resnet18"]),
        (["pruner", "net@1x3"], ["net@1x3", *HELD_OUT["pruner"]]),
    ],
)
def test_a_name_is_a_protocol_a_family_or_one_size(names, found):
    assert [network.name for network in chosen_networks(NETWORKS, names)] == found


def test_names_that_are_nowhere_are_told():
    with pytest.raises(DataError, match="networks resnext_50@1x3x224x224 are not with"):
        chosen_networks(NETWORKS, ["tenset"])
    with pytest.raises(DataError, match=r"network_info/\*\.task\.pkl of TenSet, or networks/"):
        chosen_networks([], ["pruner"])


def test_the_published_protocols_are_in_tensets_own_files(shared, tmp_path):
    unpack_network_info(shared, tmp_path / "network_info")
    found = networks_of(tmp_path)
    by_name = {(network.name, network.kind): network for network in found}
    assert len(found) == len(by_name) == 31
    pruner = {network.kind for network in chosen_networks(found, ["pruner"])}
    assert pruner == {"cuda", "llvm"}
    assert len(chosen_networks(found, ["pruner"])) == 10
    # ResNeXt-50 is there for llvm alone
    assert len(chosen_networks(found, ["tenset"])) == 9
    bert = by_name["bert_base@1x128", "cuda"]
    # 12 layers: each of seven products and norms once a layer, two twice and once behind them
    assert sorted(bert.calls.values()) == [1, 12, 12, 12, 12, 12, 12, 12, 25, 25]
