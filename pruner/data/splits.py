"""Divide records into training, validation and test sides.

A split keeps work apart, not files: the same shapes on another platform, with another
padding spelling or with fused operators count as the same workload (`ParsedKey.identity`), so a
model is never judged on a shape that it has seen on any platform.

| name        | held out                                   | generalisation to            |
|-------------|--------------------------------------------|------------------------------|
| by_task     | workloads in a frozen list (about 20 %)     | new shapes                   |
| bundled     | the same, for the bundled CPU records       | new shapes                   |
| opencl-pocl | the same, for the bundled ones of GPU kind  | new shapes                   |
| h200        | the same, for the bundled ones of an H200   | new shapes                   |
| by_operator | all workloads of the operators `held_out`   | new operators                |
| by_platform | the platforms `held_out`                    | new platforms and new shapes |
| by_network  | all tasks of the networks `held_out`        | new networks                 |
| within_task | a fifth of the programs of every task       | nothing: only for debugging  |

Workloads that are in no frozen list (a user's own records) are put on a side by a hash of their
identity, the same on every machine and whatever other tasks are there.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, UInt64

from pruner.data.frozen import BUNDLED, SIDES, SPLITS_FOLDER, FrozenSplit, Side
from pruner.data.networks import RecordedNetwork, chosen_networks
from pruner.data.tasks import TaskKey
from pruner.errors import DataError

log = logging.getLogger(__name__)

Sides = dict[str, Side]  # of identities
TEST_SHARE = 0.2
VALID_SHARE = 0.1

# Operators that one name in `held_out` may stand for.
FAMILIES: dict[str, tuple[str, ...]] = {
    "matmul": ("matmul", "batch_matmul"),
    "convolution": ("conv2d", "depthwise_conv2d", "grouped_conv2d"),
}


class LeakError(DataError):
    """The same work stands on two sides of a split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSplit:
    """Tasks on each side; with `by_rows` rows are divided instead.

    `networks`: those held out, whose means judge the test side.
    """

    name: str
    seed: int
    train: tuple[TaskKey, ...]
    valid: tuple[TaskKey, ...]
    test: tuple[TaskKey, ...]
    by_rows: bool = False
    networks: tuple[RecordedNetwork, ...] = ()

    def side(self, side: Side) -> tuple[TaskKey, ...]:
        """Return the tasks of one side."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[side]

    def rows(
        self, side: Side, key: TaskKey, digest: UInt64[np.ndarray, " row"]
    ) -> Bool[np.ndarray, " row"]:
        """Return which rows of a task are on `side`, bool [row], by `TaskRecords.digest`.

        Equal programs of the same workload are on the same side on every platform.
        """
        if key not in self.side(side):
            return np.zeros(len(digest), dtype=bool)
        if not self.by_rows:
            return np.ones(len(digest), dtype=bool)
        draw = _row_uniform(digest, f"{self.seed}:{key.identity}")
        low, high = _bounds(side)
        return (draw >= low) & (draw < high)

    @property
    def fingerprint(self) -> str:
        """Hash of the tasks on each side, for run records."""
        lines = [f"{self.name} {self.seed} {self.by_rows}"]
        lines += [f"{side} {key}" for side in SIDES for key in sorted(self.side(side))]
        return sha256("\n".join(lines).encode()).hexdigest()[:16]


def make_split(
    name: str,
    tasks: Iterable[TaskKey],
    seed: int = 0,
    *,
    held_out: Sequence[str] = (),
    workloads: Literal["unseen", "all"] = "unseen",
    folder: Path = SPLITS_FOLDER,
    networks: Callable[[], Sequence[RecordedNetwork]] = tuple,
) -> TaskSplit:
    """Divide tasks into training, validation and test by a named split.

    `held_out`: operators, platforms or networks; `networks` loads those beside the records;
    `folder` of frozen lists. by_platform with `workloads` ``unseen`` tests on the workloads that
    by_task holds out, and trains on none of them; ``all`` tests on every workload of the platform.

    Raises DataError where the name is unknown, nothing is held out or a side would be empty,
    LeakError where the same workload is on two sides (a bug or a damaged list).
    """
    keys = sorted(set(tasks))
    by_workload = ("by_task", *(one.name for one in BUNDLED.values()))
    if not keys:
        raise DataError(f"split {name}: no task given")
    if name == "within_task":
        every = tuple(keys)
        return TaskSplit(name=name, seed=seed, train=every, valid=every, test=every, by_rows=True)
    if name in by_workload:
        split = _assemble(name, seed, keys, _sides_by_workload(name, seed, keys, folder))
    elif name == "by_operator":
        split = _by_operator(seed, keys, held_out)
    elif name == "by_platform":
        split = _by_platform(seed, keys, held_out, workloads, folder)
    elif name == "by_network":
        split = _by_network(seed, keys, held_out, networks())
    else:
        known = ", ".join(by_workload)
        raise DataError(
            f"split {name!r} is unknown; known: {known}, by_operator, by_platform, by_network, "
            "within_task"
        )
    if empty := [side for side in SIDES if not split.side(side)]:
        num = len({key.identity for key in keys})
        raise DataError(
            f"split {name} (seed {seed}): no workload of these {num} is on the {empty[0]} side; "
            "add records, hold out less, or choose another split.seed or split=within_task"
        )
    if not (name == "by_platform" and workloads == "all"):
        check_no_leak(split)
    return split


def check_no_leak(split: TaskSplit) -> None:
    """Raise LeakError if the same work is on two sides."""
    seen: dict[str, Side] = {}
    for side in SIDES if not split.by_rows else ():
        for identity in (key.identity for key in split.side(side)):
            if (first := seen.setdefault(identity, side)) != side:
                raise LeakError(
                    f"workload {identity} is on two sides of the split: {first} and {side}"
                )


def _sides_by_workload(name: str, seed: int, keys: Sequence[TaskKey], folder: Path) -> Sides:
    """Return each identity's side: frozen list, else hash; no side stays empty if possible."""
    identities = sorted({key.identity for key in keys})
    if len(identities) < 3:
        raise DataError(
            f"split {name}: {len(identities)} different workloads, at least 3 needed; "
            f"use split=within_task, or add records of other shapes"
        )
    frozen = FrozenSplit.load(name, seed, folder)
    listed = frozen.sides if frozen else {}
    salt = f"{name}:{seed}"
    sides = {
        identity: listed.get(identity) or _hashed_side(identity, salt) for identity in identities
    }
    loose = [identity for identity in identities if identity not in listed]
    _fill(sides, "test", loose, salt)
    # A listed training workload may serve for validation: what is held out stays the same.
    _fill(sides, "valid", [name for name in identities if sides[name] == "train"], salt)
    return sides


def _fill(sides: Sides, side: Side, candidates: Sequence[str], salt: str) -> None:
    if side not in sides.values() and len(candidates) > 1:
        chosen = min(candidates, key=lambda identity: _uniform(identity, salt))
        log.info("split %s: %s moved to the empty %s side", salt, chosen, side)
        sides[chosen] = side


def _operators(name: str) -> tuple[str, ...]:
    return FAMILIES.get(name, (name.removesuffix("_layer"),))


def _by_operator(seed: int, keys: Sequence[TaskKey], held_out: Sequence[str]) -> TaskSplit:
    present = sorted({key.workload.short_op for key in keys})
    ops = {op for name in held_out for op in _operators(name)}
    missing = [name for name in held_out if not set(_operators(name)) & set(present)]
    if missing or not ops or not set(present) - ops:
        reason = f"no records of {', '.join(missing)}" if missing else "a side would be empty"
        raise DataError(
            f"split by_operator: split.held_out={list(held_out)}: {reason}; "
            f"operators here: {', '.join(present)}; families: {', '.join(FAMILIES)}"
        )
    away = {key.identity for key in keys if key.workload.short_op in ops}
    sides = _sides_without(away, keys, f"by_operator:{seed}")
    return _assemble("by_operator", seed, keys, sides)


def _sides_without(away: set[str], keys: Sequence[TaskKey], salt: str) -> Sides:
    """Test on `away`, validate on a hashed share of the others."""
    sides: Sides = {}
    for identity in (key.identity for key in keys):
        valid = _uniform(identity, salt) < VALID_SHARE
        sides[identity] = "test" if identity in away else "valid" if valid else "train"
    rest = sorted(identity for identity, side in sides.items() if side == "train")
    _fill(sides, "valid", rest, salt)
    return sides


def _by_platform(
    seed: int, keys: Sequence[TaskKey], held_out: Sequence[str], workloads: str, folder: Path
) -> TaskSplit:
    if workloads not in ("unseen", "all"):
        raise DataError(f"split by_platform: split.workloads={workloads!r}; known: unseen, all")
    present = sorted({key.platform for key in keys})
    missing = sorted(set(held_out) - set(present))
    if missing or not held_out or not set(present) - set(held_out):
        reason = f"no records of {', '.join(missing)}" if missing else "a side would be empty"
        hint = f"name some, such as split.held_out=[{present[-1]}]"
        if len(present) < 2:
            hint = "read several platforms with data.platform=all, and name one in "
            hint += "split.held_out=[...]"
        raise DataError(
            f"split by_platform: split.held_out={list(held_out)}: {reason}; "
            f"platforms here: {', '.join(present)}; {hint}"
        )
    away = [key for key in keys if key.platform not in held_out]
    here = [key for key in keys if key.platform in held_out]
    sides = _sides_by_workload("by_task", seed, keys, folder)
    if workloads == "unseen":
        here = [key for key in here if sides[key.identity] == "test"]
        if not here:
            raise DataError(
                f"split by_platform: {', '.join(held_out)} has no workload that by_task holds out; "
                "use split.workloads=all"
            )
        train = [key for key in away if sides[key.identity] == "train"]
    else:
        train = [key for key in away if sides[key.identity] != "valid"]
    return TaskSplit(
        name="by_platform",
        seed=seed,
        train=tuple(train),
        valid=tuple(key for key in away if sides[key.identity] == "valid"),
        test=tuple(here),
    )


def _by_network(
    seed: int, keys: Sequence[TaskKey], held_out: Sequence[str], networks: Sequence[RecordedNetwork]
) -> TaskSplit:
    """Hold out all tasks of the named networks' families.

    At any input size and for any target, as in TenSet's scripts; judged are the named sizes only.
    """
    judged = chosen_networks(networks, held_out)
    families = {network.family for network in judged}
    away = {name for each in networks if each.family in families for name in each.calls}
    sides = _sides_without(away, keys, f"by_network:{seed}")
    here = {each.name for each in judged if any(each.weight(key) for key in keys)}
    missing = sorted({each.name for each in judged} - here)
    if missing or not held_out:
        reason = f"no records of {', '.join(missing)}" if missing else "a side would be empty"
        raise DataError(
            f"split by_network: split.held_out={list(held_out)}: {reason}; "
            f"networks: {', '.join(sorted({each.name for each in networks}))}"
        )
    return replace(_assemble("by_network", seed, keys, sides), networks=judged)


def _assemble(name: str, seed: int, keys: Sequence[TaskKey], sides: Sides) -> TaskSplit:
    def pick(side: Side) -> tuple[TaskKey, ...]:
        return tuple(key for key in keys if sides[key.identity] == side)

    return TaskSplit(
        name=name, seed=seed, train=pick("train"), valid=pick("valid"), test=pick("test")
    )


def _hashed_side(identity: str, salt: str) -> Side:
    draw = _uniform(identity, salt)
    return next(side for side in SIDES if _bounds(side)[0] <= draw < _bounds(side)[1])


def _bounds(side: Side) -> tuple[float, float]:
    edge = TEST_SHARE + VALID_SHARE
    return {"test": (0.0, TEST_SHARE), "valid": (TEST_SHARE, edge), "train": (edge, 1.0)}[side]


def _uniform(text: str, salt: str) -> float:
    digest = sha256(f"{salt}\n{text}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def _row_uniform(digest: UInt64[np.ndarray, " row"], salt: str) -> np.ndarray:
    """Return `_uniform` of digests: splitmix64's finaliser over digest xor salt."""
    start = np.uint64(int.from_bytes(sha256(salt.encode()).digest()[:8], "big"))
    mixed = digest ^ start
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2**53
