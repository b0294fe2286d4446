"""Which task a record is of: the orders of arguments of TVM's tutorial and of this project."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pruner.data.workload import fused_from_name
from pruner.errors import UnsupportedProgram
from pruner.program.te.recorded_task import TaskReader

OURS = '["conv2d_layer", 1, 160, 28, 14, 96, 3, 3, 1, [1, 1]]'
TUTORIAL = '["conv2d_layer", 1, 28, 14, 96, 160, 3, 3, [1, 1], [1, 1]]'


def split(stage: int, *extents: int, parts: int = 1) -> list[list[Any]]:
    """Splits of a stage's loops, first loop first, each into two."""
    return [["SP", stage, 2 * i, extent, [1], parts] for i, extent in enumerate(extents)]


CONV = split(3, 1, 96, 28, 14, 160, 3, 3)


@pytest.mark.parametrize(
    ("key", "steps", "named", "task"),
    [
        (OURS, CONV, (), (OURS, ())),
        (TUTORIAL, [*CONV, ["AN", 6, 0, 3]], (), (OURS, ("bias", "relu"))),
        (TUTORIAL, CONV, (), (OURS, ())),  # the same function without what the tutorial adds
        (TUTORIAL, [*CONV, ["AN", 4, 0, 3]], (), (OURS, ("relu",))),
        (TUTORIAL, [*CONV, ["AN", 5, 0, 3]], ("add",), (OURS, ("add",))),
        (OURS, [*CONV, ["PR", 3, 0, "unroll_explicit$1"]], (), (OURS, ())),  # unread
        (TUTORIAL.replace("_layer", ""), CONV, (), (OURS, ())),
        (OURS.replace("_layer", ""), CONV, (), (OURS, ())),
        (OURS.replace("1, [1, 1]", "[1, 1], [1, 1]"), CONV, (), (OURS, ())),
        (
            '["matmul_add", 64, 32, 16, "float32"]',
            [*split(2, 64, 16, 32), ["AN", 4, 0, 3]],
            (),
            ('["matmul_layer", 64, 32, 16]', ("add",)),
        ),
        (
            '["matmul_auto_scheduler_test", 64, 16, 32]',
            split(2, 64, 16, 32),
            (),
            ('["matmul_layer", 64, 32, 16]', ()),
        ),
        ('["matmul_layer", 64, 32, 16]', split(2, 64, 16, 32), (), ("", ())),
        ('["matmul", 64, 32, 16, "float16"]', split(2, 64, 16, 32), (), ("", ())),
        ('["gelu_gemm", 64, 32, 16]', split(2, 64, 16, 32), (), ("", ())),
        ('["gemm_relu", 64]', [["MS", "abc", [1]]], ("relu",), ("", ())),
        ('["matmul_layer", 64, 32, 16]', [["MS", "abc", [1]]], ("relu",), ("", ("relu",))),
    ],
)
def test_the_extents_of_splits_choose_the_order_of_arguments(
    key: str, steps: list[Any], named: tuple[str, ...], task: tuple[str, tuple[str, ...]]
) -> None:
    """``""``: the key stays."""
    assert TaskReader()(key, steps, named) == (task[0] or key, task[1])


@pytest.mark.parametrize("key", [OURS, TUTORIAL, '["matmul_layer", 32, 64, 16]'])
def test_splits_that_no_order_explains_are_refused(key: str) -> None:
    steps = split(2, 7, 11) if "matmul" in key else split(3, 1, 96, 13, 13)
    read = TaskReader()
    for _ in range(30):
        with pytest.raises(UnsupportedProgram, match="its splits contradict these arguments"):
            read(key, steps, ())


def test_a_program_of_metaschedule_among_steps_is_refused() -> None:
    with pytest.raises(UnsupportedProgram, match="replay-error"):
        TaskReader()(OURS, [*CONV, ["MS", "abc", [1]]], ())


def test_a_damaged_record_does_not_decide_and_a_good_one_does() -> None:
    read = TaskReader()
    with pytest.raises(UnsupportedProgram):
        read(TUTORIAL, split(3, 1, 97), ())
    assert read(TUTORIAL, CONV, ()) == (OURS, ())
    assert read(TUTORIAL, split(3, 1, 97), ())[0] == OURS  # the features refuse this program


def test_every_task_of_the_ansor_set_is_read_as_it_is_named(repository: Path) -> None:
    files = sorted((repository / "datasets/ansor/measure_records").glob("*/*.json.gz"))
    assert len(files) == 45
    read = TaskReader()
    for file in files:
        with gzip.open(file, "rt") as lines:
            record = json.loads(next(lines))
        key = record["i"][0][0]
        assert read(key, record["i"][1][1], ()) == (key, fused_from_name(file.name)), file
