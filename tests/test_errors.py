"""Errors travel between processes and keep their reason."""

import pickle

import pytest

from pruner.errors import DataError, MissingExtra, PrunerError, UnknownStep, UnsupportedProgram


@pytest.mark.parametrize(
    "error",
    [
        DataError("records/k80: no usable record"),
        UnsupportedProgram("unknown-operator", "winograd_layer"),
        UnknownStep("unknown-step", "PPT"),
        MissingExtra("tvm", "tvm"),
    ],
)
def test_an_error_survives_a_worker_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
    assert isinstance(copy, PrunerError)


def test_a_reason_is_a_code_and_the_message_adds_what_was_found():
    error = UnknownStep("unknown-step", "PPT")
    assert (error.reason, str(error)) == ("unknown-step", "unknown-step: PPT")
    assert str(UnsupportedProgram("no-graph")) == "no-graph"


def test_a_missing_library_names_the_command():
    assert "pip install 'pruner[wandb]'" in str(MissingExtra("wandb", "wandb"))
