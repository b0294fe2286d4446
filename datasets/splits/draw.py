"""Draw a frozen split from a record folder and write it beside this file.

    python datasets/splits/draw.py NAME DATA_ROOT [--seed 0] [--test 0.2] [--valid 0.1]

Existing files are never overwritten: a frozen list does not change.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping

import numpy as np

from pruner.data.frozen import SPLITS_FOLDER, FrozenSplit
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import TEST_SHARE, VALID_SHARE
from pruner.errors import DataError

Workloads = Mapping[str, tuple[str, frozenset[str]]]  # identity to operator, platforms


def draw_split(
    name: str,
    workloads: Workloads,
    *,
    seed: int,
    test: float,
    valid: float,
    max_draws: int = 10_000,
) -> FrozenSplit:
    """Draw a split of `workloads`, stratified by operator.

    `workloads` maps identity to (operator, platforms that measured it). By systematic sampling: the
    workloads are shuffled inside each operator, operators stand one behind the other in shuffled
    order, and every (1 / `test`)-th workload from a random start is held out; then the same among
    the rest for validation. Draws repeat until every platform has between half and one and a half
    times its share of held-out workloads (at least one) and a validation workload, so that a split
    never leaves a small platform untested, and every operator with several workloads has one in
    training.

    Raises `DataError` for fewer than three workloads, or where no draw is balanced.
    """
    if len(workloads) < 3:
        raise DataError(f"split {name}: {len(workloads)} different workloads; at least 3 needed")
    count = Counter(op for op, _ in workloads.values())
    several = {op for op, number in count.items() if number > 1}
    generator = np.random.default_rng(seed)
    for draw in range(1, max_draws + 1):
        order = _shuffled_by_operator(workloads, generator)
        held_out = _every(order, test, generator)
        rest = [identity for identity in order if identity not in held_out]
        checked = _every(rest, valid / (1 - test), generator)
        trained = set(rest) - checked
        missing = several - {workloads[identity][0] for identity in trained}
        if not missing and _balanced(workloads, held_out, checked, test):
            how = (
                f"systematic sampling over operators, test {test:.3g}, valid {valid:.3g}, "
                f"numpy default_rng({seed}), draw {draw} (the first balanced over platforms that "
                f"trains on every operator with several workloads)"
            )
            return FrozenSplit(
                name=name,
                seed=seed,
                how=how,
                train=tuple(sorted(trained)),
                valid=tuple(sorted(checked)),
                test=tuple(sorted(held_out)),
            )
    raise DataError(f"split {name}: no draw is balanced over platforms; widen test={test}")


def _shuffled_by_operator(workloads: Workloads, generator: np.random.Generator) -> list[str]:
    by_op: dict[str, list[str]] = {}
    for identity in sorted(workloads):
        by_op.setdefault(workloads[identity][0], []).append(identity)
    ops = sorted(by_op)
    return [
        by_op[ops[op]][position]
        for op in generator.permutation(len(ops))
        for position in generator.permutation(len(by_op[ops[op]]))
    ]


def _every(order: list[str], share: float, generator: np.random.Generator) -> set[str]:
    count = max(1, round(share * len(order)))
    positions = (np.arange(count) + generator.random()) * len(order) / count
    return {order[int(position)] for position in positions}


def _balanced(
    workloads: Workloads,
    test: set[str],
    valid: set[str],
    share: float,
) -> bool:
    for platform in sorted({name for _, names in workloads.values() for name in names}):
        here = {identity for identity, (_, names) in workloads.items() if platform in names}
        num_test = len(here & test)
        fair = 0.5 * share * len(here) <= num_test <= 1.5 * share * len(here)
        if not (fair and num_test and here & valid):
            return False
    return True


def main() -> int:
    """Read the tasks, draw, write, and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="name of the split, for example by_task")
    parser.add_argument("data_root", help="folder that holds measure_records/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", type=float, default=TEST_SHARE, help="share held out")
    parser.add_argument("--valid", type=float, default=VALID_SHARE, help="share for validation")
    options = parser.parse_args()
    try:
        platforms: dict[str, set[str]] = {}
        ops: dict[str, str] = {}
        for records in RecordRoot(options.data_root).read(Quarantine()):
            identity = records.key.identity
            ops[identity] = records.key.workload.short_op
            platforms.setdefault(identity, set()).add(records.key.platform)
        split = draw_split(
            options.name,
            {identity: (ops[identity], frozenset(platforms[identity])) for identity in ops},
            seed=options.seed,
            test=options.test,
            valid=options.valid,
        )
        path = split.save(SPLITS_FOLDER)
    except DataError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sizes = f"{len(split.train)} train, {len(split.valid)} valid, {len(split.test)} test"
    sys.stdout.write(f"{path}: {sizes} workloads; {split.how}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
