"""A small task, and TVM's logger as it was."""

import logging

import pytest

from pruner.tune.workloads import from_operator

SIZES = {"operator": "matmul", "m": 64, "n": 64, "k": 64, "epilogue": ["relu"]}
LOG = "tvm.s_tir.meta_schedule"


@pytest.fixture(autouse=True)
def quiet():
    """TVM's logger as it was: TVM takes no nameless handlers, which pytest hangs on it."""
    logger = logging.getLogger(LOG)
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    for handler in list(logger.handlers):
        handler.close()
        logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(before)


@pytest.fixture(scope="module")
def module():
    return from_operator(SIZES).module
