"""CONTRIBUTING's recipe "add a feature", followed: one row, one value, and it is everywhere."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest

ROW = '"iterations", "unroll depth in force", _STATEMENT_SOURCE),\n'
NEW_ROW = '        _logged("twice_the_loops", "loops", "2 x num_loops", "a test"),\n'
VALUE = '        "num_loops": frame.present.sum(0),\n'
NEW_VALUE = '        "twice_the_loops": 2 * frame.present.sum(0),\n'

USE = """
import json
import numpy as np, torch
from pruner.data.tasks import TaskKey
from pruner.features import STATEMENT_COLUMNS, featurize_records
from pruner.features.batch import ProgramFeatures
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.ranker import NeuralRanker
from pruner.models.trees.xgboost import pooled

steps = [[["FU", 1, [0, 1]], ["SP", 1, 0, 2048, [t], 1], ["AN", 1, 0, 5], ["AN", 1, 1, 6]]
         for t in (8, 32)]
found = featurize_records('["relu_layer", 64, 32]', (), steps)
key = TaskKey(platform="v100", task="t", workload_key="", target="")
store = ProgramTable.build([TaskPrograms.of(key, found, np.ones(2), np.arange(2))])
index = torch.arange(2)
ranker = NeuralRanker(PaCM(width=8), store.fit_scaler(index))
names = [column.name for column in STATEMENT_COLUMNS]
print(json.dumps({
    "names": names,
    "values": {name: found.statement[:, names.index(name)].tolist() for name in names[-3:]},
    "tensor": list(store.programs(index).statement.shape),
    "pooled": pooled(store.programs(index), ("sum",)).shape[1],
    "scores": len(ranker.score_store(store, index)),
    "empty": ProgramFeatures.empty(3).statement.shape[1],
}))
"""


def edited(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has changed: say here how a feature is added now"
    path.write_text(text.replace(old, old + new))


def used(folder):
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", USE],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory, repository):
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(
        repository / "pruner", folder / "pruner", ignore=shutil.ignore_patterns("__pycache__")
    )
    told = StringIO()
    with redirect_stdout(told):  # of this process, whose package is the same
        exec(USE, {})
    before = json.loads(told.getvalue())
    edited(folder / "pruner/features/columns.py", ROW, NEW_ROW)
    edited(folder / "pruner/features/statement/analysis.py", VALUE, NEW_VALUE)
    return before, used(folder)


def test_the_new_column_has_its_name_and_value(before_and_after):
    before, after = before_and_after
    assert after["names"] == [*before["names"], "twice_the_loops"]
    two_loops, twice_two_loops = pytest.approx([1.584963] * 2), pytest.approx([2.321928] * 2)
    assert after["values"]["twice_the_loops"] == twice_two_loops  # log2(1 + 4)
    assert before["values"]["num_loops"] == two_loops  # log2(1 + 2)


def test_every_width_has_followed(before_and_after):
    before, after = before_and_after
    rows, width = before["tensor"]
    assert after["tensor"] == [rows, width + 1]
    assert after["pooled"] == before["pooled"] + 1
    assert after["empty"] == before["empty"] + 1
    assert after["scores"] == before["scores"] == 2
