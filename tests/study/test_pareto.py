"""The picture and the page of a front: no warning, and every program of the front is named."""

import pytest
from PIL import Image

from pruner.files import write_table
from pruner.study.pareto import draw_fronts, write_front_report

POINTS = [(1, 1e-3, 8192, 1), (2, 2e-3, 4096, 1), (3, 3e-3, 6144, 0)]


JOULES = pytest.param("joules", marks=pytest.mark.slow)  # a model draws the same


@pytest.mark.parametrize("column", ["size_bytes", "energy_model_j", JOULES])
def test_a_front_is_drawn_and_listed(tmp_path, column):
    rows = [
        {"task": task, "trial": n, "latency_s": s, column: value, "checked": 1, "on_front": front}
        for task in ("conv2d", "matmul")
        for n, s, value, front in POINTS
    ]
    write_table(tmp_path / "pareto.csv", rows)
    with Image.open(draw_fronts(tmp_path)) as picture:
        assert picture.height > picture.width
    page = write_front_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("2 of 3 programs are on the front") == 2
    assert ("energies are a model" in page) == (column == "energy_model_j")
    if column == "size_bytes":
        assert ">8.00<" in page
        assert ">6.00<" not in page
