"""The table of the attack is whole whatever fails, and goes on where it was ended."""

import re

from tests.attack.findings import Closing, Finding, findings
from tests.attack.report import Case, Results, table
from tests.commands import python
from tests.paths import REPOSITORY

CASES = """
import os, pytest

def test_good(record_property):
    assert "SECOND" not in os.environ  # it held: it is not run again
    record_property("tried", 40)
    record_property("peak_mb", 7)

@pytest.mark.parametrize("kind", ["a/b", "c"])
def test_kinds(kind, record_property):
    record_property("tried", 10)
    record_property("tried", 20)
    record_property("failed", 3 if kind == "c" else 0)
    assert kind != "c" or "SECOND" in os.environ, "the line that tells"
    record_property("failed", 0)

def test_left_out():
    pytest.skip("no device")
"""
RUN = """
import os, pytest, sys
from pathlib import Path
from tests.attack.report import Plugin, Results

folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
plugin = Plugin(Results(folder / "out"), "abc", seconds, folder / "copy.md")
words = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
words += ["-k", os.environ["ONLY"]] if "ONLY" in os.environ else []
pytest.main([*words, str(folder / "test_some.py")], [plugin])
plugin.write()
"""


def ran(folder, seconds=1000, **environment):
    (folder / "test_some.py").write_text(CASES)
    quick = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = python("-c", RUN, folder, seconds, bare=True, **quick, **environment)
    assert done.returncode == 0, done.stderr
    return (folder / "copy.md").read_text()


def test_what_held_is_not_run_again_and_what_failed_or_waits_is_told(tmp_path):
    text = ran(tmp_path, seconds=0)
    assert text.startswith("# What was tried, held and failed\n\nCommit abc; ")
    assert "| all | 40 | 40 | 0 |" in text
    assert "* some: good: peak_mb 7" in text
    assert "* not run yet: test_some.py::test_kinds[a/b]" in text
    text = ran(tmp_path, ONLY="kinds")
    assert "* not run yet, of other parts: 1 cases" in text
    assert "| some: good | 40 | 40 | 0 |" in text
    assert "| some: kinds | 40 | 37 | 3 |" in text
    assert "* FAILED test_some.py::test_kinds[c]: " in text
    assert "the line that tells" in text
    text = ran(tmp_path, SECOND="1")
    assert "| all | 80 | 80 | 0 |" in text
    assert "* left out: some: left out: Skipped: no device" in text
    assert "FAILED" not in text
    assert "not run yet" not in text


def test_a_table_by_hand(tmp_path):
    results = Results(tmp_path / "out")
    held = Case(name="tests/attack/test_kills.py::test_tune", tried=1200, failed=0, seconds=60.0)
    wrong = Case(name="tests/attack/x.py::test_y[a/b]", tried=2, failed=1, seconds=0.5, told="why")
    for case in (wrong, held, held):
        results.keep(case)
    assert results.held() == {held.name}
    assert table(results.cases()) == (
        "| attack | tried | held | failed | seconds |\n"
        "|---|---|---|---|---|\n"
        "| kills: tune | 1,200 | 1,200 | 0 | 60.0 |\n"
        "| x: y | 2 | 1 | 1 | 0.5 |\n"
        "| all | 1,202 | 1,201 | 1 | 60.5 |\n"
        "\n"
        "* FAILED x.py::test_y[a/b]: why\n"
    )


def test_every_finding_names_tests_that_exist():
    found = findings()
    assert [finding.name for finding in found] == [f"F{n}" for n in range(1, 28)]
    for closing in [closing for finding in found for closing in finding.tests]:
        names = re.findall(r"^def (test_\w+)\(", closing.file.read_text(), re.MULTILINE)
        cases = [f"{closing.file.relative_to(REPOSITORY).as_posix()}::{name}" for name in names]
        assert any(map(closing.has, cases)), closing


def test_a_row_for_each_finding_by_hand():
    """Tests elsewhere count for their finding alone; what waits is said."""
    here, there = REPOSITORY / "tests/attack/test_a.py", REPOSITORY / "tests/data/test_b.py"
    found = [
        Finding(name="F1", found="x", tests=(Closing(file=here), Closing(file=there, words="y z"))),
        Finding(name="F2", found="w", tests=(Closing(file=there, words="later"),)),
    ]
    cases = [
        Case(name="tests/attack/test_a.py::test_p[1]", tried=10, failed=1, seconds=1.0),
        Case(name="tests/data/test_b.py::test_y_z[y]", tried=2, failed=0, seconds=1.0),
        Case(name="tests/data/test_b.py::test_x[y_z]", tried=4, failed=0, seconds=1.0),
    ]
    text = table(cases, ["tests/data/test_b.py::test_later"], found)
    assert "| a: p | 10 | 9 | 1 | 1.0 |\n| all | 10 | 9 | 1 | 1.0 |" in text
    assert "| F1 x | 12 | 11 | 1 | 2.0 |" in text
    assert "| F2 w (1 tests not run yet) | 0 | 0 | 0 | 0.0 |" in text
