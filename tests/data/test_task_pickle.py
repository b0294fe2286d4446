"""The reader of TenSet's task pickles: right on real files, unmoved by hostile ones."""

import builtins
import collections
import functools
import json
import operator
import os
import pickle
import sys
import tarfile
import types
from pathlib import Path
from typing import Any

import pytest

from pruner.data.tenset.safe_pickle import UnsafePickle
from pruner.data.tenset.task_pickle import ALLOWED_TYPES, load_inert, read_task_pickle
from pruner.errors import DataError


class Call:
    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def hostile_payloads(marker: Path) -> dict[str, bytes]:
    """Each would create ``marker`` (or reach a function) if anything of it were executed."""
    touch = f"open({str(marker)!r}, 'w').close()"
    shell = f"touch {marker}"
    values = {
        "os.system": Call(os.system, shell),
        "builtins.eval": Call(eval, touch),
        "builtins.exec": Call(exec, touch),
        "builtins.open": Call(open, str(marker), "w"),
        "builtins.getattr": Call(getattr, os, "system"),
        "builtins.__import__": Call(__import__, "os"),
        "posix.mkdir": Call(os.mkdir, str(marker)),
        "functools.partial": Call(functools.partial, os.system, shell),
        "operator.attrgetter": Call(operator.attrgetter, "system"),
        "collections.OrderedDict": collections.OrderedDict(a=1),
        "nested in a list": ([[{"k": (1, Call(os.system, shell))}]], [1]),
        "as a dictionary key": {Call(os.system, shell): 1},
        "bytes": ([b"x"], [1]),
        "set": ([{1}], [1]),
    }
    payloads = {}
    for name, value in values.items():
        for protocol in (2, 4, 5):
            try:
                payloads[f"{name}, protocol {protocol}"] = pickle.dumps(value, protocol)
            except (TypeError, pickle.PicklingError):  # os itself cannot be pickled
                continue
    text = shell.encode()
    payloads |= {
        "text protocol": b"cos\nsystem\n(S'" + text + b"'\ntR.",
        "old instance": b"(S'" + text + b"'\nios\nsystem\n.",
        "old object": b"(cos\nsystem\nS'" + text + b"'\no.",
        "dotted name": b"\x80\x04\x8c\x12tvm.runtime.object\x8c\x0f_new_object.sys\x93.",
        "extension code": b"\x80\x02\x82\x01.",
        "persistent identifier": b"Pevil\n.",
        "huge memo index": b"\x80\x02Nr\xff\xff\xff\x7f.",
        "module attribute chain": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.",
    }
    return payloads


def test_hostile_pickles_are_refused_and_run_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    payloads = hostile_payloads(marker)
    assert len(payloads) > 30
    for name, payload in payloads.items():
        with pytest.raises(UnsafePickle, match="refused"):
            load_inert(payload)
        assert not marker.exists(), name
    pickle.loads(payloads["builtins.exec, protocol 4"])  # by an ordinary unpickler it runs
    assert marker.exists()


def test_nothing_is_imported(tmp_path: Path) -> None:
    (tmp_path / "evil_module_of_a_pickle.py").write_text("raise SystemExit")
    sys.path.insert(0, str(tmp_path))
    try:
        with pytest.raises(UnsafePickle, match=r"evil_module_of_a_pickle\.run"):
            load_inert(b"cevil_module_of_a_pickle\nrun\n.")
    finally:
        sys.path.remove(str(tmp_path))
    assert "evil_module_of_a_pickle" not in sys.modules


@pytest.mark.parametrize(
    "payload",
    [
        # state set on the stand-in for _new_object itself: attributes of ours must not change
        b"\x80\x04ctvm.runtime.object\n_new_object\n}\x8c\x01xK\x01sb.",
        b"\x80\x04ctvm.runtime.object\n_new_object\nN}\x8c\x0c__defaults__)s\x86b.",
        b"\x80\x04ctvm.target.target\nTarget\n}\x8c\x04nameK\x01sb.",
        # _new_object called with something that is no type
        b"\x80\x04ctvm.runtime.object\n_new_object\nK\x01\x85R.",
        b"\x80\x04ctvm.runtime.object\n_new_object\nctvm.runtime.object\n_new_object\n\x85R.",
    ],
)
def test_allowed_names_cannot_be_abused(payload: bytes) -> None:
    before = {key: dict(vars(value)) for key, value in ALLOWED_TYPES.items()}
    with pytest.raises(DataError):
        load_inert(payload)
    assert before == {key: dict(vars(value)) for key, value in ALLOWED_TYPES.items()}


@pytest.mark.parametrize(
    "payload",
    [b"", b"\x80", b"\x80\x04N", b"\x80\x04K\x01K", b"not a pickle", b"\x80\x04.", b"h\x05."],
)
def test_damaged_pickles_are_data_errors(payload: bytes) -> None:
    with pytest.raises(DataError):
        load_inert(payload)


def graph(*nodes: Any) -> str:
    return json.dumps({"root": 1, "nodes": [{"type_key": ""}, *nodes]})


TARGET = graph(
    {"type_key": "Target", "attrs": {"attrs": "6", "keys": "4", "kind": "2"}},
    {"type_key": "TargetKind", "attrs": {"name": "3"}},
    {"type_key": "runtime.String", "repr_str": "llvm"},
    {"type_key": "Array", "data": [5]},
    {"type_key": "runtime.String", "repr_str": "cpu"},
    {"type_key": "Map", "keys": ["mattr", "link-params"], "data": [7, 10]},
    {"type_key": "Array", "data": [8, 9]},
    {"type_key": "runtime.String", "repr_str": "+a"},
    {"type_key": "runtime.String", "repr_str": "+b"},
    {"type_key": "IntImm", "attrs": {"value": "0"}},
)
HARDWARE = graph(
    {
        "type_key": "auto_scheduler.HardwareParams",
        "attrs": {
            "cache_line_bytes": "3",
            "max_local_memory_per_block": "5",
            "max_shared_memory_per_block": "4",
            "max_threads_per_block": "6",
            "max_vthread_extent": "7",
            "num_cores": "1",
            "vector_unit_bytes": "2",
            "warp_size": "8",
        },
    }
)


def fake_module(monkeypatch: pytest.MonkeyPatch, module: str, name: str, base: type) -> Any:
    kind = type(name, (base,), {"__module__": module})
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
    monkeypatch.setattr(sys.modules[module], name, kind, raising=False)  # TVM may be loaded
    return kind


def tenset_payload(monkeypatch: pytest.MonkeyPatch, protocol: int) -> bytes:
    """What TVM's own pickling writes, made with look-alike classes."""
    new_object = fake_module(monkeypatch, "tvm.runtime.object", "_new_object", builtins.object)

    class Handled:
        def __init__(self, **state: Any) -> None:
            self.state = state

        def __reduce__(self) -> Any:
            return new_object, (type(self),), self.state

    string = fake_module(monkeypatch, "tvm.runtime.container", "String", str)
    target = fake_module(monkeypatch, "tvm.target.target", "Target", Handled)
    module = "tvm.auto_scheduler.search_task"
    task = fake_module(monkeypatch, module, "SearchTask", Handled)
    hardware = fake_module(monkeypatch, module, "HardwareParams", Handled)
    dag = fake_module(monkeypatch, "tvm.auto_scheduler.compute_dag", "ComputeDAG", Handled)
    tasks = [
        task(
            compute_dag=dag(tensors="{}"),
            workload_key=string('["abc", 1]'),
            target=target(handle=TARGET),
            hardware_params=hardware(handle=HARDWARE),
        ),
        task(
            compute_dag=dag(tensors="{}"),
            workload_key='["abd"]',
            target=target(handle=TARGET),
            hardware_params=None,
        ),
    ]
    return pickle.dumps((tasks, [3, 1]), protocol)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_fields_of_a_small_file(protocol, tmp_path, monkeypatch):
    path = tmp_path / "small.task.pkl"
    with monkeypatch.context() as patch:
        path.write_bytes(tenset_payload(patch, protocol))
    first, second = read_task_pickle(path)
    assert first.workload_key == '["abc", 1]'
    assert first.target == "llvm -keys=cpu -link-params=0 -mattr=+a,+b"
    assert (first.weight, second.weight) == (3, 1)
    assert first.compute_dag == "{}"
    assert second.workload_key == '["abd"]'


@pytest.mark.parametrize("value", [1, ([], [1]), ([1], [1]), [[], [], []], ({}, {})])
def test_other_contents_are_refused(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.pkl"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(DataError, match=r"other\.pkl"):
        read_task_pickle(path)


def test_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_task_pickle(tmp_path / "none.pkl")


@pytest.fixture(scope="module")
def task_files(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    archive = shared / "data" / "tenset-network-info" / "task-pickles.tar.xz"
    if not archive.is_file():
        pytest.skip(f"no task files: {archive} is absent")
    folder = tmp_path_factory.mktemp("network_info")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return sorted(folder.rglob("*.task.pkl"))


def test_every_task_of_tenset_is_read(task_files: list[Path]) -> None:
    tasks = [task for file in task_files for task in read_task_pickle(file)]
    assert len(task_files) == 31
    assert len({(task.target, task.workload_key) for task in tasks}) == 653
    assert all(task.weight >= 1 for task in tasks)
    for file in task_files:
        kinds = {task.target.split()[0] for task in read_task_pickle(file)}
        assert kinds == {"cuda" if "cuda" in file.name else "llvm"}
