"""The driver against a stand-in for Ansor's Python: a script that writes journal lines or dies."""

import ast
import json
import stat
import subprocess
import sys
import time

import pytest

from pruner.errors import PrunerError
from pruner.tune.collect.driver import CollectPlan, collect
from pruner.tune.collect.layout import TaskPaths, read_journal
from pruner.tune.collect.noise import Remeasured, noise_summary, relative_spread, remeasure
from pruner.tune.collect.tasks import select_tasks
from pruner.tune.measure.targets import CPU_TARGETS, missing_flags

# modules that run in the Ansor environment, which has TVM and numpy but none of our libraries
CHILDREN = (
    "pruner.tune.collect.worker",
    "pruner.tune.collect.remeasure",
    "pruner.tune.rivals.ansor_child",
)

STAND_IN = """#!{python}
import json, os, sys, time
from pathlib import Path

if sys.argv[2].endswith("remeasure"):
    print(json.dumps([[2 * c for c in r["r"][0]] for r in json.load(sys.stdin)]))
    sys.exit(0)
spec = json.loads(sys.argv[3])
journal = Path(spec["journal"])
known = journal.read_text().splitlines() if journal.exists() else []
plan = ["random"] * spec["num_random"] + ["evolved"] * spec["num_evolved"]
with journal.open("a") as file:
    for number in range(len(known), len(plan)):
        {misbehave}
        head = [spec["workload_key"], spec["target"], spec["hardware_params"], "", 0, []]
        record = {{"i": [head, [[], [["SP", 0, 0, 8, [number], 1]]]]}}
        record |= {{"r": [[1e-3, 3e-3, 2e-3], 0, 0.1, spec["seed"]], "v": "v0.6"}}
        file.write(json.dumps({{"origin": plan[number], "record": record}}) + chr(10))
        file.flush()
"""


@pytest.fixture
def make_plan(tmp_path):
    def make(misbehave="pass", **changes):
        python = tmp_path / "python"
        python.write_text(STAND_IN.format(python=sys.executable, misbehave=misbehave))
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        values = {
            "tasks": select_tasks("matmul_128_128_128"),
            "targets": CPU_TARGETS[:2],
            "python": python,
            "out": tmp_path / "out",
            "num_programs": 6,
            "seed": 5,
            "repeats": 3,
            "min_repeat_ms": 1,
            "max_spread": 0.1,
            "program_timeout_s": 10.0,
            "child_timeout_s": 30.0,
        }
        return CollectPlan(**(values | changes))

    return make


def record_lines(plan, platform="cpu-sse4"):
    paths = TaskPaths(out=plan.out, platform=platform, task="matmul_128_128_128")
    return read_journal(paths.journal), json.loads(paths.origin.read_text())


def silent(line):
    pass


def test_every_pair_is_measured_and_complete_ones_are_skipped_next_time(make_plan):
    plan = make_plan()
    first = collect(plan, silent)
    assert (first.records, first.failed, first.skipped, first.short) == (12, 0, 0, ())
    assert record_lines(plan)[1] == ["random"] * 3 + ["evolved"] * 3
    again = collect(plan, silent)
    assert (again.records, again.skipped) == (0, 2)


def test_more_programs_later_go_on_from_what_is_there(make_plan):
    collect(make_plan(), silent)
    report = collect(make_plan(num_programs=8), silent)
    # the stand-in fills up to 4 + 4 by position; three random and three evolved were there
    assert report.records == 4


def test_a_crash_costs_the_rest_of_one_child_and_is_tried_again_with_another_seed(make_plan):
    plan = make_plan("if number == 4 and spec['seed'] == 5: os.abort()")
    report = collect(plan, silent)
    assert (report.records, report.short) == (12, ())
    log = plan.out / "journal" / "cpu-sse4" / "matmul_128_128_128.log"
    assert not log.exists()


def test_what_was_measured_before_a_lasting_crash_is_kept(make_plan):
    plan = make_plan("if number == 4: os.abort()")
    report = collect(plan, silent)
    assert report.records == 8
    assert report.short[0] == "cpu-sse4/matmul_128_128_128: 4 of 6"
    assert "exit status -6" in (plan.out / "journal/cpu-sse4/matmul_128_128_128.log").read_text()


def test_stopping_at_a_slow_program_is_progress_not_an_attempt(make_plan):
    # every child adds one record and leaves as if the next program had been too slow
    plan = make_plan("if number > len(known): sys.exit(75)")
    assert collect(plan, silent).records == 12


def test_a_hanging_child_is_stopped(make_plan, tmp_path, monkeypatch):
    """Its seconds count once it hangs, however long Python takes to start."""
    hangs = tmp_path / "hangs"

    class Popen(subprocess.Popen):
        def wait(self, timeout=None):
            while self.poll() is None and not hangs.exists():
                time.sleep(0.01)
            hangs.unlink(missing_ok=True)
            return super().wait(timeout)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    misbehave = f"if number == 4: Path({str(hangs)!r}).touch(); time.sleep(60)"
    plan = make_plan(misbehave, child_timeout_s=0.2)
    assert collect(plan, silent).records == 8
    log = plan.out / "journal" / "cpu-sse4" / "matmul_128_128_128.log"
    assert log.read_text().endswith("stopped after 0.2 s\n")


def test_nothing_measured_is_one_clear_error(make_plan):
    with pytest.raises(PrunerError, match="no program could be measured"):
        collect(make_plan("sys.exit(1)"), silent)


def test_relative_spread_by_hand():
    assert relative_spread([1.0, 4.0, 2.0]) == 1.5
    assert Remeasured(
        platform="p", task="t", line=0, first_s=[1.0, 3.0], again_s=[3.0, 3.0]
    ).ratio == pytest.approx(1.5)


def test_remeasuring_reports_the_change(make_plan):
    plan = make_plan()
    collect(plan, silent)
    rows = remeasure(plan, 3, silent)
    assert {row.platform for row in rows} == {"cpu-sse4", "cpu-avx2"}
    assert [row.ratio for row in rows] == pytest.approx([2.0, 2.0, 2.0])
    summary = noise_summary(plan.out)
    assert summary["repeat_spread_median"] == pytest.approx(1.0)  # 1, 2 and 3 ms
    assert summary["remeasure_change_max"] == pytest.approx(1.0)
    assert "remeasured.json" in (plan.out / "SHA256SUMS").read_text()


def test_targets_say_which_instructions_a_cpu_lacks(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: sse4_2 avx2 fma avx512f\n")
    assert [missing_flags(target, cpuinfo) for target in CPU_TARGETS] == [
        [],
        [],
        ["avx512dq", "avx512bw", "avx512vl"],
    ]


class WithoutTypeChecking(ast.NodeTransformer):
    def visit_If(self, node):
        return None if getattr(node.test, "id", "") == "TYPE_CHECKING" else node


def imported_by(path):
    """Modules, and names in them that may be modules; not what is imported for type checkers."""
    for node in ast.walk(WithoutTypeChecking().visit(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name, repository):
    path = repository.joinpath(*name.split("."))
    return next((p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file()), None)


def test_children_import_nothing_the_ansor_environment_lacks(repository):
    """Directly or not; operators are found by name, so all their files count."""
    operators = repository / "pruner" / "program" / "dag" / "operators"
    waiting = [
        *CHILDREN,
        *(f"pruner.program.dag.operators.{p.stem}" for p in operators.glob("*.py")),
    ]
    seen, outside = set(), set()
    while waiting:
        name = waiting.pop()
        packages = [name.rsplit(".", n)[0] for n in range(name.count(".") + 1)]
        for module in packages:
            path = file_of(module, repository)
            if module not in seen and path is not None:
                seen.add(module)
                waiting += imported_by(path)
        outside |= {name.split(".")[0]} - {"pruner"}
    assert outside - set(sys.stdlib_module_names) == {"numpy"}
    assert {"pruner.data.quarantine", "pruner.program.dag.operators.windows"} <= seen
