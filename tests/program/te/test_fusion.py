"""What steps tell of fused operators: by hand, and for every recorded task."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pruner.data.workload import fused_from_name
from pruner.errors import UnsupportedProgram
from pruner.program.te.recorded_task import fused_in_steps, stages_reached

CONV = '["conv2d_layer", 1, 8, 14, 14, 8, 3, 3, 1, "SAME"]'


@pytest.mark.parametrize(
    ("steps", "stages"),
    [
        ([], 0),
        ([["CI", 1], ["AN", 3, 0, 3]], 4),
        ([["CHW", 3, "local"], ["SP", 3, 0, 8, [2], 1], ["AN", 4, 0, 5]], 4),
        ([["CHR", 1, "shared", [3]], ["AN", 4, 0, 5]], 4),
        ([["CHR", 1, "shared", [3]], ["CHR", 3, "shared", [4]], ["AN", 5, 0, 5]], 4),
        ([["CA", 3, 5, 1]], 6),
        ([["RF", 3, 2, 1], ["AN", 4, 0, 3]], 4),
        ([["CHW", 3, "local"], ["CHW", 3, "local"], ["CHR", 0, "shared", [1]], ["AN", 6, 0, 3]], 4),
    ],
)
def test_inserted_stages_do_not_count(steps: list[list[Any]], stages: int) -> None:
    assert stages_reached(steps) == stages


@pytest.mark.parametrize(
    ("last", "named", "fused"),
    [
        (3, (), ()),
        (3, ("relu",), ()),  # the name says more than the steps
        (4, (), ("relu",)),
        (5, (), ("add",)),
        (5, ("bias",), ("bias",)),  # as many stages as a sum: the name decides
        (6, (), ("add", "relu")),
        (6, ("bias", "relu"), ("bias", "relu")),
        (7, (), ("bias", "add")),
        (8, (), ("bias", "add", "relu")),
        (2, ("relu",), ("relu",)),  # too few to tell
    ],
)
def test_stages_decide_what_is_fused(
    last: int, named: tuple[str, ...], fused: tuple[str, ...]
) -> None:
    assert fused_in_steps(CONV, [["AN", last, 0, 3]], named) == fused


def test_more_stages_than_any_epilogue_are_refused() -> None:
    with pytest.raises(UnsupportedProgram, match=r"its steps name 10 stages; .* has 4, and 9 with"):
        fused_in_steps(CONV, [["AN", 9, 0, 3]], ("relu",))


@pytest.mark.parametrize("key", ['["conv2d_layer", 1]', '["layer_norm_layer", 2, 3]'])
def test_other_programs_keep_what_the_name_says(key: str) -> None:
    assert fused_in_steps(key, [["AN", 9, 0, 3]], ("add",)) == ("add",)


@pytest.mark.parametrize("key", ['["<hash>", 1, 2]', '["gemm_add_layer", 1]'])
def test_the_name_of_another_operator_is_its_own(key: str) -> None:
    assert fused_in_steps(key, [["AN", 9, 0, 3]], ("add",)) == ()


def check(folder: Path) -> int:
    files = sorted(folder.glob("*/*.json.gz"))
    for file in files:
        with gzip.open(file, "rt") as lines:
            record = json.loads(next(lines))
        found = fused_in_steps(record["i"][0][0], record["i"][1][1], ())
        assert found == fused_from_name(file.name), file
    return len(files)


def test_every_task_of_the_ansor_set(repository: Path) -> None:
    assert check(repository / "datasets" / "ansor" / "measure_records") == 45


def test_every_recorded_task(shared: Path) -> None:
    if not check(shared / "data" / "gpu-records" / "measure_records"):
        pytest.skip("no GPU records")
