"""What a comparison of adaptation methods runs on, and which of its cells are there."""

import pytest

from pruner.data.root import RecordRoot
from pruner.errors import PrunerError
from pruner.models.checkpoint.checkpoint import CheckpointInfo
from pruner.models.programs.dataset import ProgramReader
from pruner.models.registry import ModelSpec
from pruner.places import datasets_folder
from pruner.progress import Progress
from pruner.study.adaptation.bench import _read, seen_workloads
from pruner.study.adaptation.cells import Cells


def about(seen):
    return CheckpointInfo(
        model=ModelSpec(name="PaCM"), feature_version="", dataflow="paper", seen_tasks=seen
    )


def test_methods_with_all_their_seeds_are_finished(tmp_path):
    (tmp_path / "cells").mkdir()
    for cell in ("moa-seed-0", "moa-seed-1", "ewc-seed-0", "random-seed-0", "random-seed-1"):
        (tmp_path / "cells" / f"{cell}.json").touch()
    cells = Cells(folder=tmp_path)
    assert cells.finished(["ewc", "moa", "none"], [0, 1]) == ["moa"]
    assert cells.missing([("ewc", 0), ("ewc", 1)]) == [("ewc", 1)]


def test_workloads_that_a_checkpoint_learned_anywhere_are_known():
    root, progress = RecordRoot(datasets_folder() / "bundled"), Progress()
    reader = ProgramReader(root)
    keys = {name: list(_read(reader, name, progress)) for name in root.platforms}
    here, third = keys["cpu-sse4"] + keys["cpu-avx2"], keys["cpu-avx512"]
    learned = {"cpu-avx2": [keys["cpu-avx2"][0].task], "cpu-avx512": [third[1].task, third[2].task]}
    seen = seen_workloads(about(learned), reader, here, progress)
    assert seen == {k.identity for k in (keys["cpu-avx2"][0], third[1], third[2])}
    with pytest.raises(PrunerError, match=r"fitted on records of orin, which .* lacks"):
        seen_workloads(about({"orin": ["conv2d"]}), reader, here, progress)
