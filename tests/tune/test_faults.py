"""What TVM refuses is not legal; what fails in TVM is told or raised, never taken for a refusal."""

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pruner.tune.lanes import _is_written
from pruner.tune.spaces.batched import trace
from pruner.tune.tvm_import import load_tvm
from tests.tune.designs import designs_of

pytestmark = pytest.mark.tvm

SPEC = {"operator": "matmul", "m": 32, "n": 64, "k": 16}


@pytest.fixture(scope="module")
def design():
    return designs_of(SPEC, {"kind": "llvm", "num-cores": 2})[0]


@pytest.fixture
def row(design):
    return design.vector(design.replay(None, 1).trace)


def failing(design, error):
    """The design with a postprocessor that fails."""
    generator = SimpleNamespace(postprocs=[Mock(**{"apply.side_effect": error})])
    return replace(design, context=SimpleNamespace(space_generator=generator))


def test_a_condition_refuses_and_a_fault_of_tvm_is_logged_once(design, row, caplog):
    refused = load_tvm().s_tir.ScheduleError("the block is not complete")
    assert failing(design, refused).replay(row, 1) is None
    assert caplog.text == ""
    error = load_tvm().tvm.error.InternalError("stack\nCheck failed: (a == b) is false: of a test")
    broken = failing(design, error)
    assert broken.replay(row, 1) is None
    assert broken.replay(row, 2) is None
    (record,) = caplog.records
    assert record.getMessage() == (
        "fault of TVM: a program is left out: InternalError: "
        "Check failed: (a == b) is false: of a test"
    )


@pytest.mark.parametrize("error", [TypeError("no such field"), AttributeError("x"), MemoryError()])
def test_any_other_error_surfaces(design, row, error):
    with pytest.raises(type(error)):
        failing(design, error).replay(row, 1)


@pytest.mark.parametrize("expected", [True, False])
def test_only_a_failed_check_means_that_lanes_are_not_written(design, monkeypatch, expected):
    tvm = load_tvm().tvm
    error = tvm.error.InternalError("(eval_vec_) is false") if expected else TypeError("a fault")
    passes = Mock(side_effect=error)
    monkeypatch.setattr(tvm.tirx, "get_default_tir_pipeline", lambda target: (passes, None, None))
    if expected:
        assert not _is_written(design.module["main"], design.target)
    else:
        with pytest.raises(TypeError, match="a fault"):
            _is_written(design.module["main"], design.target)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("The block no longer exists in the IRModule"), True),
        (ValueError("another mistake"), False),
        (RuntimeError("a fault"), False),
    ],
)
def test_a_head_goes_on_only_without_what_it_took_away(design, monkeypatch, error, expected):
    monkeypatch.setattr(load_tvm().s_tir.Schedule, "get", Mock(side_effect=error))
    kinds = [inst.kind.name[:6] for inst in design.trace.insts]
    length = kinds.index("Sample")
    if expected:
        assert trace._apply_head(design, length)[1] == {}
    else:
        with pytest.raises(type(error), match=str(error)):
            trace._apply_head(design, length)


def test_vectors_of_real_programs_meet_no_fault(design, caplog):
    rng = np.random.default_rng(0)
    found = [design.replay(None, int(seed)) for seed in rng.integers(1, 1000, 20)]
    assert any(one is not None for one in found)
    assert caplog.text == ""
