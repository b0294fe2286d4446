"""A network as one library computes what torch does, in this process and in a fresh one."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from pruner.errors import PrunerError
from pruner.files import held
from pruner.tune.compare.baselines import Resources
from pruner.tune.compare.benchmark import worst_output
from pruner.tune.deploy import build, built_files, network
from pruner.tune.deploy.apply_records import keys_of
from pruner.tune.deploy.build import build_network, network_worker, write_reference
from pruner.tune.deploy.built_files import WORK, deploying
from pruner.tune.deploy.network import Deployed, cannot_run, deploy_network
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import platform_analyzer
from pruner.tune.networks import draft_network, request
from pruner.tune.networks.extraction import TASKS, extract_tasks, read_tasks, write_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest
from pruner.tune.networks.source import NetworkSource
from pruner.tune.run.database import RECORDS, Database
from pruner.tune.tvm_import import load_tvm
from tests.paths import REPOSITORY
from tests.tune.networks import small_networks
from tests.tune.networks.operators.against_torch import Function
from tests.tune.some_slow import some_slow
from tests.tune.targets import platform_of, target_of

HERE = "tests.tune.networks.small_networks"


@pytest.fixture(scope="module")
def platform():
    return platform_of("cpu-sse4")


def prepared(name, platform, folder):
    """A run folder as extraction leaves it, made in this process; `name` of a factory or a file."""
    source = NetworkSource(name=name if "." in name else f"{HERE}:{name}")
    request = NetworkRequest(source=source, target=json.loads(platform.target_json))
    request.save(folder / REQUEST)
    write_tasks(folder, keep=True)
    return read_tasks(folder / TASKS)


BLOCKED = """
import sys, runpy
sys.modules["torch"] = sys.modules["pruner"] = None
found = runpy.run_path(sys.argv[1])
import numpy
numpy.savez(sys.argv[2], *[output.numpy() for output in found["outputs"]])
"""
# The lines of docs/networks.md between the inputs and the outputs.
OF_THE_PAGE = """
import sys
sys.modules["torch"] = sys.modules["pruner"] = None
import numpy
(images,) = numpy.load(sys.argv[1]).values()
{lines}
outputs = [result] if hasattr(result, "numpy") else result
numpy.savez(sys.argv[2], *[output.numpy() for output in outputs])
"""


def of_the_page(folder):
    """The program of docs/networks.md that runs the network of a run folder."""
    text = (REPOSITORY / "docs" / "networks.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"(?:^    .+\n)*^    .*TVM_USE_RUNTIME_LIB.*\n(?:^    .+\n)*", text, re.M)
    assert len(lines.splitlines()) == 5
    lines = dedent(lines).replace("outputs/tune/RUN", str(folder))
    return OF_THE_PAGE.format(lines=lines)


@pytest.mark.tvm
def test_a_graph_of_kernels_is_refused_where_there_are_none(platform, tmp_path):
    prepared("faint", platform, tmp_path)
    with pytest.raises(PrunerError, match=r"cuda_graph=true: .* tuned for llvm; .* leave it out"):
        network.deploy_network(tmp_path, platform, None, cuda_graph=True)


@pytest.mark.tvm
@some_slow("name", ["faint"], ["two_outputs", "one_image"])
def test_a_deployed_network_runs_without_torch(name, platform, tmp_path, in_process):
    """Outputs of a billionth; slow: several outputs of reshapes alone, and folded norms.
    The loader of the run folder runs with torch and this package out of reach."""
    tasks = prepared(name, platform, tmp_path)
    tuned = [task for task in tasks if task.tuned]
    measured = tuned[: max(1, len(tuned) // 2)]
    for task in measured:
        schedule = load_tvm().s_tir.Schedule(task.module)
        block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
        schedule.annotate(block, "mark", "a trace must not be empty")
        Database(tmp_path).commit(task.module, schedule, (1.0,), platform.target)
    deployed = network.deploy_network(tmp_path, platform, None)
    assert (deployed.applied, deployed.tasks) == (len(measured), len(tasks))
    assert deployed.applied + deployed.drafted + len(deployed.untouched) == len(tasks)
    assert deployed.relative_error < 1e-5
    assert min(deployed.latencies_s) > 0
    assert sum(deployed.latencies_s) < 3  # the fixture works: by default it is timed for 5 s
    kept = json.loads((tmp_path / built_files.DEPLOY_FILE).read_text())
    assert kept["median_s"] == np.median(deployed.latencies_s)

    found, expected = tmp_path / "found.npz", tmp_path / "first.npz"
    with np.load(tmp_path / "deploy" / "expected.npz") as arrays:
        outputs = {
            call: [arrays[n] for n in arrays.files if call in n] for call in ("arr", "again")
        }
    assert len(outputs["arr"]) == len(outputs["again"])
    assert any((a != b).any() for a, b in zip(*outputs.values(), strict=True))
    np.savez(expected, *outputs["arr"])
    programs = {BLOCKED: tmp_path / built_files.LOADER}
    if name != "two_outputs":  # the page takes one tensor of floats
        programs[of_the_page(tmp_path)] = tmp_path / "deploy" / "inputs.npz"
    for program, given in programs.items():
        command = [sys.executable, "-c", program, str(given), str(found)]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert worst_output(found, expected)[0] < 1e-5
        found.unlink()
    with np.load(expected) as arrays:
        scale = max(np.abs(arrays[n]).max() for n in arrays.files)
        assert (scale < 1e-7) == (name == "faint")
        assert len(arrays.files) == (2 if name == "two_outputs" else 1)


def exported(folder, factory="one_image"):
    """A ``.pt2`` file of a network, by default with folded norms."""
    network, inputs = getattr(small_networks, factory)()
    with torch.no_grad():
        torch.export.save(torch.export.export(network, inputs), folder / "net.pt2")
    return folder / "net.pt2"


def onnx_file(folder):
    """A convolution, a pool and a linear layer, written with ONNX's own helper."""
    from tests.tune.networks.onnx_graphs import FLOAT, make, written

    pytest.importorskip("onnxruntime")
    shapes = {"w": (8, 3, 3, 3), "b": (8,), "dense": (8, 5), "offset": (5,)}
    rng = np.random.default_rng(0)
    nodes = [
        make.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        make.make_node("Relu", ["c"], ["r"]),
        make.make_node("GlobalAveragePool", ["r"], ["p"]),
        make.make_node("Flatten", ["p"], ["f"]),
        make.make_node("Gemm", ["f", "dense", "offset"], ["y"]),
    ]
    constants = {n: rng.standard_normal(shape, dtype=np.float32) for n, shape in shapes.items()}
    ends = [("x", FLOAT, [2, 3, 8, 8])], [("y", FLOAT, [2, 5])]
    return written(folder / "net.onnx", nodes, *ends, constants)


@pytest.mark.tvm
@some_slow(("write", "products"), [(onnx_file, 2)], [(exported, 4)])
def test_a_file_becomes_a_right_library(write, products, platform, tmp_path, in_process, runs_here):
    """From the file to tasks and to a library; outputs compared with torch's, and onnxruntime's."""
    tasks = prepared(str(write(tmp_path)), platform, tmp_path)
    kinds = ("conv2d", "matmul")
    assert sum(t.weight for t in tasks if any(kind in t.name for kind in kinds)) == products
    deployed = network.deploy_network(tmp_path, platform, None)
    assert deployed.drafted + len(deployed.untouched) == len(tasks)
    assert deployed.relative_error is not None
    assert deployed.relative_error < 1e-5
    with np.load(tmp_path / "deploy" / "expected.npz") as arrays:
        assert [arrays[name].shape[-1] for name in arrays.files] == [5, 5]
    assert (tmp_path / built_files.LIBRARY).is_file()


@pytest.mark.tvm
def test_a_run_goes_on_where_its_file_was_moved(
    platform, tmp_path, in_process, runs_here, monkeypatch
):
    """The network is in the run folder; outputs are compared where an earlier build kept them.
    It is compiled once, and again where a part of it is another."""
    monkeypatch.setattr(build, "compiled", compiled := Mock(wraps=build.compiled))
    path = exported(tmp_path, "faint")
    prepared(str(path), platform, tmp_path)
    path.rename(tmp_path / "moved.pt2")
    deployed = network.deploy_network(tmp_path, platform, None)
    assert deployed.relative_error is None
    assert deployed.notes == [f"outputs are not checked: {path} was moved"]
    (tmp_path / "moved.pt2").rename(path)
    assert network.deploy_network(tmp_path, platform, None).relative_error < 1e-5
    path.unlink()
    deployed = network.deploy_network(tmp_path, platform, None)
    assert deployed.relative_error < 1e-5
    assert "outputs of an earlier build" in deployed.notes[0]
    assert (tmp_path / built_files.LIBRARY).is_file()
    assert compiled.call_count == 1
    assert {"apply", "build"} <= set(deployed.seconds)
    library = (tmp_path / built_files.LIBRARY).read_bytes()
    (tmp_path / built_files.LIBRARY).unlink()  # this process has loaded it
    (tmp_path / built_files.LIBRARY).write_bytes(library[:-1] + bytes([library[-1] ^ 1]))
    assert network.deploy_network(tmp_path, platform, None).size_bytes == deployed.size_bytes
    assert compiled.call_count == 2
    records = tmp_path / draft_network.FOLDER / RECORDS
    records.write_text(records.read_text() + records.read_text().splitlines()[-1] + "\n")
    network.deploy_network(tmp_path, platform, None)
    assert compiled.call_count == 3


@pytest.mark.tvm
def test_a_network_is_lowered_once_for_its_tasks_and_its_library(platform, tmp_path, monkeypatch):
    """Without the saved functions, or where the network's file is newer, it is lowered again."""
    lowered, lower = [], request.lowered_network

    def counted(asked):
        lowered.append(lower(asked))
        return lowered[-1]

    path = exported(tmp_path, "faint")
    first = request.NetworkRequest(
        source=request.NetworkSource(name=str(path)), target=json.loads(platform.target_json)
    )
    first.save(tmp_path / request.REQUEST)
    monkeypatch.setattr(request, "lowered_network", counted)
    wanted, _, _ = counted(first)
    request.save_lowered(wanted, tmp_path)
    found = request.read_lowered(tmp_path)
    assert len(lowered) == 1
    assert load_tvm().ffi.structural_equal(found, wanted)
    assert keys_of(found) == keys_of(wanted)
    later = (tmp_path / request.LOWERED).stat().st_mtime + 1
    os.utime(path, (later, later))
    assert keys_of(request.read_lowered(tmp_path)) == keys_of(wanted)
    assert len(lowered) == 2
    (tmp_path / request.LOWERED).unlink()
    os.utime(path, (0, 0))
    request.read_lowered(tmp_path)
    assert len(lowered) == 3


@pytest.mark.tvm
def test_a_failed_build_leaves_the_earlier_result(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ask", Mock(side_effect=PrunerError("no")))
    earlier = tmp_path / "deploy.json"
    earlier.write_text("earlier", encoding="utf-8")
    library = tmp_path / "deploy" / "network.so"
    with pytest.raises(PrunerError, match="no"):
        build.build_network(tmp_path, {}, library, tmp_path / "deploy.log")
    assert earlier.read_text(encoding="utf-8") == "earlier"
    assert list(tmp_path.iterdir()) == [earlier]


@pytest.mark.tvm
def test_wrong_outputs_are_an_error_and_no_result(platform, tmp_path, in_process, monkeypatch):
    """Nor is what was found of an earlier library left, which would be taken for this one's."""
    prepared("faint", platform, tmp_path)
    files = ("DEPLOY_FILE", "LIBRARY", "COMPARISON_FILE", "REPORT")
    found = [getattr(built_files, name) for name in files]
    for name in (*found, "metrics.json"):
        (tmp_path / name).write_text("earlier", encoding="utf-8")
    ran = SimpleNamespace(error=None, latencies_s=[1.0], facts={"load_s": 1.0})
    monkeypatch.setattr(network, "run_interleaved", lambda *_: [ran])
    monkeypatch.setattr(network, "ask", lambda *_, **__: [1.0])  # its outputs are sums
    monkeypatch.setattr(network, "_worst", lambda *_: (0.5, "output 0"))  # also with rounding
    with pytest.raises(PrunerError, match=r"differ from torch's by 0.5.*remove .*lowered.json"):
        network.deploy_network(tmp_path, platform, None)
    assert not [name for name in found if (tmp_path / name).exists()]
    assert (tmp_path / "metrics.json").exists()
    assert (tmp_path / "deploy" / built_files.LIBRARY).is_file()
    assert not (tmp_path / "deploy" / built_files.BUILT_FILE).exists()


@pytest.mark.tvm
def test_a_library_without_expected_outputs_is_told_of():
    """An ONNX file where onnxruntime is not installed: timed, but not compared."""
    found = Deployed(
        library=Path("a.so"), target="llvm", resources=Resources(threads=2), size_bytes=2_000_000,
        tasks=2, applied=1, drafted=1, by_rules=0, untouched=[], seconds={},
        latencies_s=[0.5, 1.5, 1.0], notes=["why"],
    )  # fmt: skip
    told = ["a.so: 2.0 MB, 1 measured, 1 drafted schedules", "1000 ms (median, 2 threads)", "why"]
    assert list(found.lines()) == told
    assert list(replace(found, relative_error=0.25).lines())[1] == f"{told[1]}, relative error 0.25"


def roots():
    """The square root of what is above 1; other inputs are below."""
    return Function(lambda x: torch.sqrt(x - 1)), torch.tensor([1.1, 1.2, 1.3])


def in_order(ids):
    """A row of a table by numbers that ascend; other orders are refused."""
    if not (ids.diff() > 0).all():
        raise ValueError("not in order\nat all")
    return ids * 2.0


def table():
    return Function(in_order), torch.tensor([1, 2, 5])


def line():
    return torch.nn.Linear(3, 2), torch.ones(4, 3)


@pytest.mark.tvm
@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("roots", "with others: more of its outputs are not finite"),
        ("table", "with others: not in order"),
        ("line", None),
    ],
)
def test_the_second_call_has_other_inputs_where_they_are_valid(name, note, tmp_path):
    notes = write_reference(NetworkSource(name=f"{__name__}:{name}"), tmp_path, 1)
    both = "both compared calls have the same inputs; "
    assert notes == ([] if note is None else [both + note])
    with np.load(tmp_path / "inputs.npz") as first, np.load(tmp_path / "again.npz") as second:
        assert np.array_equal(first["arr_0"], second["arr_0"]) == (note is not None)
    with np.load(tmp_path / "expected.npz") as found:
        assert all(np.isfinite(found[one]).all() for one in ("arr_0", "again_0"))


@pytest.mark.tvm
def test_inputs_of_a_file_are_positive_where_others_have_no_outputs(tmp_path):
    from tests.tune.networks.onnx_graphs import FLOAT, make, written

    pytest.importorskip("onnxruntime")
    nodes = [
        make.make_node("Log", ["x"], ["l"]),
        make.make_node("ReduceSum", ["l"], ["y"], keepdims=0),
    ]
    written(tmp_path / "net.onnx", nodes, [("x", FLOAT, [8])], [("y", FLOAT, [])])
    assert write_reference(NetworkSource(name=str(tmp_path / "net.onnx")), tmp_path, 1) == []
    with np.load(tmp_path / "inputs.npz") as given, np.load(tmp_path / "expected.npz") as found:
        np.testing.assert_allclose(found["arr_0"], np.log(given["arr_0"]).sum(), rtol=1e-5)


@pytest.mark.tvm
def test_outputs_of_an_earlier_build_are_not_compared(tmp_path, monkeypatch):
    for name in ("again.npz", "expected.npz"):
        (tmp_path / name).write_text("earlier", encoding="utf-8")
    monkeypatch.setattr(build, "_reference_runner", lambda *_: (None, "no runner"))
    notes = build.write_reference(NetworkSource(name=f"{__name__}:line"), tmp_path, 1)
    assert notes == ["outputs are not checked: no runner"]
    assert [one.name for one in tmp_path.iterdir()] == ["inputs.npz"]


@pytest.mark.tvm
def test_no_run_where_the_device_is_not(platform, monkeypatch):
    """A remote CPU's library must not be run on this one."""
    remote = replace(platform, address=RpcAddress(host="h", port=1, key="k"))
    assert cannot_run(platform) is None
    assert cannot_run(remote) == "the device is behind a tracker"
    monkeypatch.setenv("PATH", "")
    assert cannot_run(replace(platform, device="cuda")) == "no NVIDIA driver on this machine"


@pytest.mark.tvm
def test_what_is_not_as_it_was_is_told_in_one_line(platform, tmp_path, in_process):
    with pytest.raises(PrunerError, match=r"no network\.json there"):
        deploy_network(tmp_path, platform, None)
    prepared("faint", platform, tmp_path)
    with pytest.raises(PrunerError, match="no task of this network has a measured program"):
        deploy_network(tmp_path, platform, None, draft=False)
    with pytest.raises(PrunerError, match="was tuned for"):
        deploy_network(tmp_path, replace(platform, target=target_of(7)), None)
    rows = json.loads((tmp_path / TASKS).read_text(encoding="utf-8"))
    rows[0]["key"] = "0" * 16
    (tmp_path / TASKS).write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(PrunerError, match="not the one that was tuned: 1 tuned tasks are gone"):
        deploy_network(tmp_path, platform, None)
    (tmp_path / TASKS).unlink()
    with pytest.raises(PrunerError, match="its import did not end"):
        deploy_network(tmp_path, platform, None)


@pytest.mark.tvm
@pytest.mark.slow
def test_a_worker_finds_tasks_and_builds_and_its_mistakes_are_one_line(platform, tmp_path):
    library, log = tmp_path / "work" / "network.so", tmp_path / "deploy.log"
    with network_worker() as worker:
        source = NetworkSource(name=f"{HERE}:faint")
        extract_tasks(source, platform.target_json, tmp_path, keep=True, worker=worker)
        built = build_network(tmp_path, {}, library, log, worker=worker)
        assert built.library.is_file()
        assert built.size_bytes == built.library.stat().st_size
        assert set(built.seconds) == {"import", "apply", "build", "export", "reference"}
        rows = json.loads((tmp_path / TASKS).read_text(encoding="utf-8"))
        rows.append({**rows[0], "name": "x", "key": "0"})
        (tmp_path / TASKS).write_text(json.dumps(rows), encoding="utf-8")
        with pytest.raises(PrunerError, match=r"1 tuned tasks are gone.*deploy.log has the whole"):
            build_network(tmp_path, {}, library, log, worker=worker)


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_a_network_is_compiled_for_a_gpu_without_one(tmp_path, in_process):
    """Drafted and by TVM's rules; that it was not run is said."""
    a100 = platform_of("a100")
    tasks = prepared("one_image", a100, tmp_path)
    deployed = deploy_network(tmp_path, a100, platform_analyzer(a100))
    assert deployed.drafted + deployed.by_rules == len(tasks)
    assert deployed.drafted >= len(tasks) - 1
    assert deployed.relative_error is None
    assert "compiled but not run" in deployed.notes[0]


def test_two_do_not_build_at_once(tmp_path):
    words = "import pathlib, sys; from pruner.tune.deploy.built_files import deploying\n"
    words += "with deploying(pathlib.Path(sys.argv[1])):\n    print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", words, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(PrunerError, match=f"{WORK}: process {other.pid} .* works in it"):
            deploying(tmp_path).__enter__()
        with held(tmp_path):  # as tune.py does
            pass
        other.stdin.close()
    with deploying(tmp_path), deploying(tmp_path):  # tune.py's last step is this process's own
        pass
