"""Pictures of tuning runs: drawn without a warning, latencies of one program on an axis."""

import numpy as np
import pytest
from PIL import Image

from pruner.study.tuning_plots import CURVES, TIME, RunCurve, draw


def run(name, task, best_s):
    return RunCurve(
        name=name,
        tasks=(task,),
        trial=np.arange(1, 4),
        elapsed_s=np.arange(3.0),
        best_s=np.array(best_s),
        seconds={"build": 2.0, "run": 1.0},
    )


def test_programs_that_differ_have_a_row_of_panels_each(tmp_path):
    small, large = run("a", "matmul", [2e-3, 1e-3, 1e-3]), run("b", "softmax", [5e-2, 4e-2, 1e-2])
    heights = []
    for runs in ([small, small], [small, large]):
        assert {path.name for path in draw(runs, tmp_path)} == {CURVES, TIME}
        with Image.open(tmp_path / CURVES) as picture:
            heights.append(picture.height)
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.1)
