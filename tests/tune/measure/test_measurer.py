"""What one candidate breaks costs one candidate, and is told by its kind."""

import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError
from pruner.processes import Reply
from pruner.tune.measure.jobs import RpcAddress, Timing, build, check, reference, run
from pruner.tune.measure.machine import host_cpu
from pruner.tune.measure.measurer import Candidate, DeviceMeasurer, MeasureSettings, Platform, never
from pruner.tune.measure.numerics import load_reference
from pruner.tune.phases import Phases
from pruner.tune.tvm_import import load_tvm
from pruner.tune.workloads import arguments, from_file
from tests.tune.targets import target_of

pytestmark = pytest.mark.tvm

# The body of a program that does nothing good; the C functions really run in the worker.
BAD = {
    "run_crash": 'T.evaluate(T.call_extern("int32", "abort"))',
    "run_timeout": 'T.evaluate(T.call_extern("int32", "pause"))',
    "run_illegal_access": 'T.evaluate(T.call_extern("int32", "raise", 11))',
    "run_error": None,  # asks for arguments of another shape than it is given
    "build_error": "for t in T.thread_binding(16, thread='threadIdx.x'): b[t] = a[t]",
}
SCRIPT = """
from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def main(a: T.Buffer(({size},), "float32"), b: T.Buffer(({size},), "float32")):
    T.func_attr({{"tirx.noalias": True}})
    for i in T.serial(1):
        {body}
"""
ELEMENTWISE = """
    for i in range({size}):
        with T.sblock("b"):
            vi = T.axis.spatial({size}, i)
            b[vi] = {value}
"""


def program(folder, name, body, size=16):
    path = folder / f"{name}.py"
    path.write_text(SCRIPT.format(size=size, body=body))
    return from_file(path)[0].module


def elementwise(folder, name, value, size=4096):
    path = folder / f"{name}.py"
    head = SCRIPT.format(size=size, body="pass").split("    for i")[0]
    path.write_text(head + ELEMENTWISE.format(size=size, value=value).lstrip("\n"))
    return from_file(path)[0].module


def doubling(folder, factor=2, size=16):
    return elementwise(folder, f"times{factor}_{size}", f"a[vi] * T.float32({factor})", size)


def candidate(module):
    schedule = SimpleNamespace(mod=module)
    return Candidate(space=0, decisions=np.zeros(0, np.int64), schedule=schedule)


@pytest.fixture(scope="module")
def measurer():
    target = target_of({"kind": "llvm", "mcpu": host_cpu(), "num-cores": 1})
    settings = MeasureSettings(
        timing=Timing(repeats=2, min_repeat_ms=1), builders=1, run_timeout_s=2.0, memory_gib=2.0
    )
    with DeviceMeasurer(Platform(target=target, device="cpu"), settings, Phases()) as made:
        yield made


def measured(measurer, modules, check=None, stopped=never):
    batch = measurer.begin(list(map(candidate, modules)), arguments(modules[0]))
    return [o for _, o in measurer.results(batch, lambda *_: check is not None, check, stopped)]


def reference_of(measurer, folder, module, name="reference"):
    """The file of the results of a program."""
    path = folder / f"{name}.npz"
    assert measurer.begin_reference(module, arguments(module), path).result() is None
    return path


def test_every_failure_costs_one_candidate_and_has_its_kind(measurer, tmp_path):
    good = doubling(tmp_path)
    modules, wanted = [good], [None]
    for kind, body in BAD.items():
        bad = program(tmp_path, kind, body) if body else doubling(tmp_path, size=17)
        modules += [bad, good]
        wanted += [kind, None]
    outcomes = measured(measurer, modules)
    assert [outcome.error for outcome in outcomes] == wanted
    assert all(len(o.costs_s) == 2 and min(o.costs_s) > 0 for o in outcomes if o.error is None)
    assert all(o.latency_s == float("inf") and o.message for o in outcomes if o.error)


def test_repeats_stop_once_they_agree(tmp_path):
    module, library = doubling(tmp_path), str(tmp_path / "doubling.so")
    build(load_tvm().tvm.ir.save_json(module), '{"kind": "llvm"}', library)

    def repeats(limit):
        timing = Timing(repeats=6, min_repeat_ms=1, cv_limit=limit, priority=False)
        return len(run(library, "cpu", arguments(module), timing, None))

    assert [repeats(limit) for limit in (None, 1e9, 1e-9)] == [6, 3, 6]
    with pytest.raises(PrunerError, match="above 0"):
        Timing(cv_limit=0.0)


def test_a_program_far_above_the_best_known_one_is_timed_once(measurer, tmp_path, monkeypatch):
    module, known_s = doubling(tmp_path), iter([float("inf"), 1e3, 1e-12, 1e3])
    timing = Timing(repeats=4, min_repeat_ms=1, stop_above=1.5)
    monkeypatch.setattr(measurer, "_settings", replace(measurer._settings, timing=timing))
    # asked for one program after the other, when it is about to run
    batch = measurer.begin([candidate(module)] * 4, arguments(module), known_s.__next__)
    found = [o for _, o in measurer.results(batch, lambda *_: False, None)]
    assert [len(outcome.costs_s) for outcome in found] == [4, 4, 1, 4]
    with pytest.raises(PrunerError, match=r"measure.stop_above=0.9: it must be 1 or more"):
        Timing(stop_above=0.9)


def test_programs_are_timed_in_turns(measurer, tmp_path, monkeypatch):
    ran, timed = [], measurer._timed

    def noted(path, *rest):
        ran.append(path)
        return timed(path, *rest)

    monkeypatch.setattr(measurer, "_timed", noted)
    good, other = doubling(tmp_path), doubling(tmp_path, factor=3)
    modules = [good, program(tmp_path, "crash", BAD["run_crash"]), other, good]
    check = reference_of(measurer, tmp_path, good)
    found = measurer.in_turns(modules, arguments(good), check, 3)
    assert [outcome.error for outcome in found] == [None, "run_error", "wrong_result", None]
    assert [len(outcome.costs_s) for outcome in found] == [3, 0, 0, 3]
    assert found[0].checked
    assert min(found[0].costs_s) > 0
    one, crashed, two, three = dict.fromkeys(ran)
    # the second turn begins with the program that crashed, which has no turn any more
    assert ran == [one, crashed, two, three, two, three, one, two, three, one]
    begun = len(ran)
    assert measurer.in_turns([good], arguments(good), check, 3, lambda: len(ran) > begun) == []
    assert len(ran) == begun + 1
    # an end in the third turn of two programs, and in the first
    for more, complete in ((5, 2), (1, 0)):
        late = len(ran) + more
        ends = never, lambda late=late: len(ran) >= late
        found = measurer.in_turns([good, other], arguments(good), check, 9, *ends)
        assert len(ran) == late
        assert [outcome.error for outcome in found] == [None, "wrong_result"][:complete]
        assert [len(o.costs_s) for o in found if o.checked] == [2] * bool(complete)
    # too few turns: they are thrown away, so their results are not compared
    late = len(ran) + 5
    ends = never, lambda: len(ran) >= late
    found = measurer.in_turns([good, other], arguments(good), check, 9, *ends, 3)
    assert [(len(o.costs_s), o.error, o.checked) for o in found] == [(2, None, False)] * 2
    assert not any(Path(path).exists() for path in ran)


def test_only_programs_on_this_cpu_are_timed_with_priority():
    """Real-time priority would stall the system beside a driver, and serves nobody over RPC."""

    def asked(*, priority=True, **platform):
        seen, timing = [], Timing(priority=priority)
        done = SimpleNamespace(result=lambda: None)
        runner = SimpleNamespace(submit=lambda *what: seen.append(what) or done)
        made = Platform(target=None, **platform)
        held = SimpleNamespace(_platform=made, _runner=runner)
        DeviceMeasurer._timed(held, "x.so", (), timing)
        ((*_, given, address, known_s),) = seen
        assert known_s == float("inf")
        assert (replace(given, priority=priority), address) == (timing, made.address)
        return given.priority

    board = RpcAddress(host="h", port=1, key="k")
    assert asked(device="cpu")
    assert asked(device="opencl", on_cpu=True)
    assert not asked(device="cpu", priority=False)
    assert not asked(device="cuda")
    assert not asked(device="opencl")
    assert not asked(device="cpu", address=board)


def test_libraries_are_let_go(tmp_path):
    """A process may have 65,530 mappings, and a library takes five of them."""
    module, library = doubling(tmp_path), str(tmp_path / "doubling.so")
    build(load_tvm().tvm.ir.save_json(module), '{"kind": "llvm"}', library)
    given, expected = arguments(module), str(tmp_path / "expected.npz")
    reference(library, given, expected)
    assert check(library, "cpu", given, expected, None) == 0
    run(library, "cpu", given, Timing(repeats=2, min_repeat_ms=1, priority=False), None)
    assert library not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_memory_is_limited(measurer, tmp_path):
    """8 GiB are asked for, 2 GiB allowed; the same program with 64 bytes runs."""
    body = (
        'T.evaluate(T.call_extern("handle", "TVMBackendAllocWorkspace", 1, 0, T.uint64({}), 2, 32))'
    )
    sizes = {"small": 64, "large": 8 << 30}
    modules = [program(tmp_path, name, body.format(size)) for name, size in sizes.items()]
    outcomes = measured(measurer, modules)
    assert [outcome.error for outcome in outcomes] == [None, "run_out_of_memory"]


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        # spans 17 magnitudes: zeros in three quarters are nothing beside the largest
        ("T.exp(a[vi] * T.float32(20))", "T.if_then_else(a[vi] > T.float32(.5), {}, T.float32(0))"),
        ("T.abs(a[vi])", "T.if_then_else(a[vi] == T.float32(0), T.float32(1), {})"),  # an edge
        ("T.sqrt(a[vi])", "{} * T.float32(0.5)"),  # not defined below zero: checked above
    ],
)
def test_a_kernel_that_is_wrong_where_values_are_small_is_wrong(measurer, tmp_path, good, bad):
    modules = [
        elementwise(tmp_path, "good", good), elementwise(tmp_path, "bad", bad.format(good))
    ]  # fmt: skip
    check = reference_of(measurer, tmp_path, modules[0])
    assert ("sqrt" in good) == (list(load_reference(check)) == ["positive"])
    right, wrong = measured(measurer, modules, check)
    assert (right.error, right.checked) == (None, True)
    assert (wrong.error, wrong.checked) == ("wrong_result", False)
    assert "differs from the reference" in wrong.message


def test_an_operator_that_is_defined_nowhere_has_no_reference(measurer, tmp_path):
    never = elementwise(tmp_path, "never", "T.sqrt(T.float32(-1) - T.abs(a[vi]))")
    path = tmp_path / "never.npz"
    assert "not numbers" in measurer.begin_reference(never, arguments(never), path).result()


def test_a_reference_that_is_gone_is_no_fault_of_the_program(measurer, tmp_path):
    good = doubling(tmp_path)
    path = reference_of(measurer, tmp_path, good)
    path.write_bytes(path.read_bytes()[:300])
    (outcome,) = measured(measurer, [good], path)
    assert (outcome.error, outcome.checked) == (None, False)
    assert "not checked" in outcome.message


def test_a_reference_has_a_limit_of_its_own(measurer, tmp_path, monkeypatch):
    """It is computed on one core without schedule: minutes where a program takes milliseconds."""
    (worker,) = measurer._builders._workers
    monkeypatch.setattr(worker, "_timeout_s", 0.1)
    body = 'T.evaluate(T.call_extern("int32", "usleep", 500000))'
    module, path = program(tmp_path, "slow", body), tmp_path / "reference.npz"
    assert measurer.begin_reference(module, arguments(module), path).result() is None
    short = replace(measurer._settings, reference_timeout_s=0.1)
    monkeypatch.setattr(measurer, "_settings", short)
    reason = measurer.begin_reference(module, arguments(module), path).result()
    assert reason == "timeout: stopped after 0.1 s; measure.reference_timeout_s= gives it longer"


def test_timings_that_no_clock_gives_are_an_error(measurer, tmp_path, monkeypatch):
    lies, judge = ([-1e-3], [0.0], [float("nan")], [1e-3, float("inf")], []), measurer._outcome
    found = []

    def judged(job):
        for lie in lies:
            monkeypatch.setattr(measurer, "_run", lambda _job, lie=lie: Reply(value=lie))
            found.append(judge(job))
        return found[-1]

    monkeypatch.setattr(measurer, "_outcome", judged)
    (outcome,) = measured(measurer, [doubling(tmp_path)])
    assert outcome == found[-1]
    assert [(one.error, one.costs_s) for one in found] == [("run_error", ())] * len(lies)
    assert all(one.concerns_program for one in found)


def test_measuring_waits_for_no_builds_on_a_device_of_its_own(tmp_path):
    """The same outcomes where runs follow their builds by themselves."""
    settings = MeasureSettings(
        timing=Timing(repeats=1, min_repeat_ms=1), builders=2, exclusive=False, run_timeout_s=5.0
    )
    platform = Platform(target=target_of("llvm"), device="cpu")
    with DeviceMeasurer(platform, settings, Phases()) as measurer:
        assert measurer.lag == 1
        modules = [doubling(tmp_path), program(tmp_path, "bad", BAD["run_crash"])] * 2
        outcomes = measured(measurer, modules)
    assert [o.error for o in outcomes] == [None, "run_crash", None, "run_crash"]


def test_each_task_is_checked_against_its_own_reference(measurer, tmp_path):
    """Tasks of equal shapes, and files whose content changes: a worker keeps what it has read."""
    modules = [doubling(tmp_path, factor) for factor in (2, 3)]
    checks = [
        reference_of(measurer, tmp_path, module, name=f"reference-{number}")
        for number, module in enumerate(modules)
    ]
    for i, module in enumerate(modules):
        for j, one in enumerate(checks):
            (outcome,) = measured(measurer, [module], one)
            assert (outcome.error is None) == (i == j), (i, j, outcome)
    last = tmp_path / "reference-1.npz"  # what was read last, with the results of another task now
    last.write_bytes((tmp_path / "reference-0.npz").read_bytes())
    found = measured(measurer, [modules[1], modules[0]], checks[1])
    assert [outcome.error for outcome in found] == ["wrong_result", None]


def test_no_program_is_timed_while_a_reference_is_computed(measurer, tmp_path, monkeypatch):
    module, ends = doubling(tmp_path), []

    def slow(*_):
        time.sleep(0.2)
        ends.append(time.perf_counter())

    run, begins = measurer._run, []
    monkeypatch.setattr(measurer, "_reference", slow)
    monkeypatch.setattr(measurer, "_run", lambda j: begins.append(time.perf_counter()) or run(j))
    assert measurer.exclusive
    measurer.begin_reference(module, arguments(module), tmp_path / "reference.npz")
    (outcome,) = measured(measurer, [module])
    assert outcome.error is None
    assert ends < begins


def test_no_program_is_timed_while_a_build_that_was_cancelled_is_at_work(
    measurer, tmp_path, monkeypatch
):
    """It had begun; the builds behind it are dropped."""
    module, begins, timed = doubling(tmp_path), [], measurer._timed
    monkeypatch.setattr(measurer, "_timed", lambda *a: begins.append(left.done()) or timed(*a))
    left, waiting = Future(), Future()
    left.set_running_or_notify_cancel()
    job = measurer.begin([candidate(module)], arguments(module))[0]
    measurer.cancel([replace(job, built=left), replace(job, built=waiting)])
    Timer(0.5, left.set_result, [None]).start()
    (outcome,) = measurer.in_turns([module], arguments(module), None, 2)
    assert len(outcome.costs_s) == 2
    assert begins == [True, True]
    assert waiting.cancelled()


def test_what_fails_when_the_run_is_asked_to_end_is_no_outcome(measurer, tmp_path, monkeypatch):
    """A signal to the group of processes ends the program that is timed, too."""
    good, bad = doubling(tmp_path), program(tmp_path, "bad", BAD["run_crash"])
    asked, judge = [], measurer._outcome

    def signalled(job):
        outcome = judge(job)
        asked.extend([True] if outcome.error is not None else [])
        return outcome

    monkeypatch.setattr(measurer, "_outcome", signalled)
    outcomes = measured(measurer, [good, bad, good], stopped=lambda: bool(asked))
    assert [outcome.error for outcome in outcomes] == [None]
    assert asked


def test_what_is_built_lies_in_a_folder_of_ours_that_is_cleared(tmp_path):
    folder = tmp_path / "run" / "builds"
    (folder / "tmp123").mkdir(parents=True)
    (folder / "7.so").write_text("of a start that was killed")
    (folder / "link").symlink_to(tmp_path)
    settings = MeasureSettings(builders=1)
    platform = Platform(target=target_of("llvm"), device="cpu")
    with DeviceMeasurer(platform, settings, Phases(), folder) as measurer:
        assert list(folder.iterdir()) == []
        assert folder.stat().st_mode & 0o777 == 0o700
        assert measured(measurer, [doubling(tmp_path)])[0].error is None
    assert not folder.exists()
    assert tmp_path.exists()
