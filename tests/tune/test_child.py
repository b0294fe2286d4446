"""A child does one job after another; what is wrong comes back in one line."""

import pytest

from pruner.errors import PrunerError
from pruner.tune.child import Child


def test_a_child_remembers_and_its_mistakes_are_one_line(tmp_path):
    out, log = tmp_path / "out", tmp_path / "log"
    with Child("tests.tune.jobs_of_a_child") as child:
        child.ask("count", out, log)
        child.ask("count", out, log)
        assert out.read_text() == "2"
        with pytest.raises(PrunerError, match=f"^out is wrong; {log} has the whole output$"):
            child.ask("refuse", out, log)
        child.ask("count", out, log)  # it goes on
        assert out.read_text() == "3"
        with pytest.raises(PrunerError, match=f"^exit 7; {log} has"):
            child.ask("die", out, log)
        assert "last words" in log.read_text()
        with pytest.raises(PrunerError, match=r"^exit 7"):
            child.ask("count", out, log)


def test_a_child_that_does_not_start_says_why(tmp_path):
    log = tmp_path / "log"
    with (
        Child("tests.tune.no_such_module") as child,
        pytest.raises(PrunerError, match=f"^exit 1; {log} has the whole output$"),
    ):
        child.ask("count", tmp_path / "out", log)
    assert "No module named tests.tune.no_such_module" in log.read_text()
