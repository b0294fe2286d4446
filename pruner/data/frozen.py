"""Frozen splits: committed lists of the workloads per side, hashed.

``datasets/splits/<name>.json`` (other draws: ``<name>-seed<seed>.json``) lists workload identities
(`ParsedKey.identity` of `pruner.data.workload`). A list that was edited after it was drawn does not
load.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import orjson

from pruner.errors import DataError
from pruner.files import write_atomic
from pruner.paths import datasets_folder

Side = Literal["train", "valid", "test"]
SIDES: tuple[Side, ...] = ("train", "valid", "test")
Workloads = Mapping[str, tuple[str, frozenset[str]]]  # identity to operator, platforms
SPLITS_FOLDER = datasets_folder() / "splits"


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSplit:
    """The workload identities of each side, and how they were drawn."""

    name: str
    seed: int
    how: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Hash over name, seed and lists, independent of file formatting."""
        content = [self.name, self.seed, *(sorted(self.side(side)) for side in SIDES)]
        return sha256(orjson.dumps(content)).hexdigest()

    def side(self, side: Side) -> tuple[str, ...]:
        """Return the identities on one side."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[side]

    @property
    def sides(self) -> dict[str, Side]:
        """Side of each identity."""
        return {identity: side for side in SIDES for identity in self.side(side)}

    def save(self, folder: Path = SPLITS_FOLDER) -> Path:
        """Write the file; refuse to overwrite, since frozen lists never change."""
        path = folder / file_name(self.name, self.seed)
        if path.exists():
            raise DataError(f"{path} exists and is frozen; draw under another name or seed")
        content = {name: getattr(self, name) for name in ("name", "seed", "how", "sha256")}
        content |= {side: sorted(self.side(side)) for side in SIDES}
        with write_atomic(path) as part:
            part.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n")
        return path

    @classmethod
    def load(cls, name: str, seed: int, folder: Path = SPLITS_FOLDER) -> Self | None:
        """Load the frozen split of that name and seed, if any.

        Raises `DataError` for an unreadable or edited file, or an absent folder (an installation).
        """
        path = folder / file_name(name, seed)
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; install from a checkout: pip install -e .")
        if not path.exists():
            return None
        try:
            content = orjson.loads(path.read_bytes())
            given: dict[str, Any] = {key: content[key] for key in ("name", "seed", "how")}
            split = cls(**given | {side: tuple(content[side]) for side in SIDES})
            stored = content["sha256"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a split file ({error!r})") from error
        if split.sha256 != stored or (split.name, split.seed) != (name, seed):
            raise DataError(f"{path}: the lists do not match their sha256; restore the file")
        return split


def file_name(name: str, seed: int) -> str:
    """Return the file name of a frozen split; seed 0 is omitted."""
    return f"{name}.json" if seed == 0 else f"{name}-seed{seed}.json"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledSet:
    """A folder of ``datasets/`` with records; `what` and `better` are phrases for messages."""

    name: str
    what: str
    better: str

    @property
    def folder(self) -> Path:
        """Data root of the set."""
        return datasets_folder() / self.name


BUNDLED: Mapping[str, BundledSet] = {
    "cpu": BundledSet(
        name="bundled", what="of one machine", better="measure your own: docs/pools.md"
    ),
    "gpu": BundledSet(
        name="opencl-pocl",
        what="GPU programs, timed on a CPU",
        better="public records of GPUs: datasets/README.md",
    ),
    "h200": BundledSet(name="h200", what="of an H200", better="measure your own: docs/pools.md"),
}
"""By the name of a platform, or by the kind of all other devices."""
AUTO = "auto"  # the split that fits the records


def fitting_split(root: Path) -> str:
    """Return a bundled set's frozen split; ``by_task`` for other roots."""
    names = [one.name for one in BUNDLED.values() if one.folder.resolve() == root.resolve()]
    return names[0] if names else "by_task"
