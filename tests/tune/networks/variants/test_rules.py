"""Every rule is accepted at ten shapes; 200 wrong versions of the rules are refused."""

import importlib
import itertools
from collections import Counter

import pytest

from pruner.tune.networks.variants.check import Checker
from pruner.tune.networks.variants.graph import replaced
from pruner.tune.networks.variants.rules import RULES
from tests.paths import REPOSITORY

SMALL = (3, 4, 3, 8)
rule_by_name = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)


@pytest.fixture
def cases(monkeypatch):
    """The graphs of `benchmarks/variant_cases.py`."""
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    return importlib.import_module("variant_cases")


def check_right(cases, rule, shape):
    graph = cases.CASES[rule.__name__](*shape)
    checker, applications = Checker(graph), list(rule(graph))
    assert applications
    for application in applications:
        verdict = checker(replaced(graph, application))
        assert verdict.refused is None, shape
        assert verdict.bound < 1e-14
        assert verdict.error < 1e-5


def refusals(cases, rule, most=None):
    graph = cases.CASES[rule.__name__](*SMALL)
    checker = Checker(graph)
    for what, mutant in itertools.islice(cases.mutants(graph, rule), most):
        assert checker.exactly(mutant).refused, what
        yield what


@rule_by_name
def test_a_right_rule_is_accepted(rule, cases):
    check_right(cases, rule, cases.SHAPES[0])


@pytest.mark.slow
@rule_by_name
def test_a_right_rule_is_accepted_at_ten_shapes(rule, cases):
    assert len(cases.SHAPES) == 10
    for shape in cases.SHAPES:
        check_right(cases, rule, shape)


@rule_by_name
def test_some_wrong_versions_are_refused(rule, cases):
    assert list(refusals(cases, rule, most=12))


@pytest.mark.slow
def test_all_wrong_versions_are_refused(cases):
    kinds = Counter(what for rule in RULES for what in refusals(cases, rule))
    assert sum(kinds.values()) > 200
    assert {"constant", "swapped operands", "missing term", "axis", "place"} < set(kinds)
