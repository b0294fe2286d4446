"""Notebooks are committed as they are read: without results, and without traces of a machine.

That they execute is checked by nbmake, which collects them beside the tests.
"""

import json

import pytest

from tests.paths import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


def test_no_path_of_a_machine_is_in_a_notebook_or_its_records(repository):
    found = [
        path.name
        for path in (repository / "notebooks").rglob("*.*")
        if any(word in path.read_text(encoding="utf-8") for word in ("/home/", "/tmp/", "/root/"))
    ]
    assert found == []


def test_nbmake_is_asked_to_execute_them(pytestconfig):
    assert pytestconfig.getoption("nbmake")
    assert [path.stem for path in NOTEBOOKS] == ["network", "tour", "tuning_run"]


def test_the_notebook_that_tunes_has_a_time_limit(repository):
    """Seconds of a cell, after which nbmake gives up; all of it takes about two minutes."""
    text = (repository / "notebooks" / "network.ipynb").read_text(encoding="utf-8")
    assert json.loads(text)["metadata"]["execution"]["timeout"] == 240
