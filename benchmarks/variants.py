"""Check the rules of algebraic variants: right ones, wrong ones, and the time of a check.

    python benchmarks/variants.py

For each rule (see variant_cases.py): its applications to ten shapes, all of which must be accepted,
with the median and the longest time of a complete check and of the check in the fields (one random
point, as in a search), in milliseconds of processor time; the largest rounding error; and the
number of wrong versions, all of which must be refused. The table is results/variants.csv. The last
line is a JSON object.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from variant_cases import CASES, SHAPES, mutants

from pruner.files import write_table
from pruner.tune.networks.variants.check import Checker
from pruner.tune.networks.variants.graph import replaced
from pruner.tune.networks.variants.rules import RULES, Rule

HERE = Path(__file__).resolve().parent
MUTATED = (3, 4, 3, 8)  # the shape of the wrong versions


def row_of(rule: Rule) -> dict[str, Any]:
    """Check a rule; return its row of the table."""
    accepted, complete_ms, exact_ms, errors = 0, [], [], []
    for shape in SHAPES:
        graph = CASES[rule.__name__](*shape)
        checker = Checker(graph)
        checker(graph)  # the values of the original are computed once for all variants
        for application in rule(graph):
            new = replaced(graph, application)
            exact_ms.append(1e3 * checker.exactly(new).seconds)
            verdict = checker(new)
            complete_ms.append(1e3 * verdict.seconds)
            errors.append(verdict.error)
            accepted += verdict.refused is None
    graph = CASES[rule.__name__](*MUTATED)
    checker = Checker(graph)
    refused = [checker.exactly(mutant).refused is not None for _, mutant in mutants(graph, rule)]
    return {
        "rule": rule.__name__,
        "applications": len(complete_ms),
        "accepted": accepted,
        "exact_ms": round(median(exact_ms), 2),
        "exact_ms_max": round(max(exact_ms), 1),
        "complete_ms": round(median(complete_ms), 1),
        "complete_ms_max": round(max(complete_ms), 1),
        "error": float(f"{max(errors):.1e}"),
        "wrong": len(refused),
        "refused": sum(refused),
    }


def main() -> None:
    """Check all rules and write the table."""
    rows = [row_of(rule) for rule in RULES]
    for row in rows:
        print(row, file=sys.stderr)
    write_table(HERE / "results" / "variants.csv", rows)
    names = ("applications", "accepted", "wrong", "refused")
    print(json.dumps({name: sum(row[name] for row in rows) for name in names}))


if __name__ == "__main__":
    main()
