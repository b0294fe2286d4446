"""Ways to damage a record: what a torn write, a flipped bit, another tool or a liar would do.

Each takes a good record as a dict, which it may change, and a generator; it returns one line.
"""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Mutation = Callable[[dict[str, Any], random.Random], bytes]
HUGE = (99, 2**31, 2**31 + 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
ODD = (None, True, "x", "", 1.5, -1, [], {}, [[]], {"a": 1}, "\ud800", float("nan"), 2**65, 1e308)


def _line(raw: Any) -> bytes:
    return json.dumps(raw).encode()


def _steps(raw: dict[str, Any]) -> list[Any]:
    found: list[Any] = raw["i"][1][1]
    return found


def _leaves(node: Any) -> Iterator[tuple[Any, Any]]:
    for key in node if isinstance(node, dict) else range(len(node)):
        if isinstance(node[key], list | dict):
            yield from _leaves(node[key])
        else:
            yield node, key


def _leaf(raw: Any, rng: random.Random, *kinds: type) -> tuple[Any, Any]:
    found = [(at, key) for at, key in _leaves(raw) if not kinds or type(at[key]) in kinds]
    return rng.choice(found)


def _put(value: Callable[[random.Random], Any], *kinds: type, steps: bool = False) -> Mutation:
    """Another value in the place of a number or a text, anywhere or in the steps."""

    def change(raw: dict[str, Any], rng: random.Random) -> bytes:
        at, key = _leaf(_steps(raw) if steps else raw, rng, *kinds)
        at[key] = value(rng)
        return _line(raw)

    return change


def _text(change: Callable[[bytes, random.Random], bytes]) -> Mutation:
    return lambda raw, rng: change(_line(raw), rng)


def _flip(line: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(line)
    damaged[rng.randrange(len(line))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _without_some(line: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(line))
    return line[:start] + line[start + rng.randrange(1, 20) :]


def _drop_step(raw: dict[str, Any], rng: random.Random) -> bytes:
    del _steps(raw)[rng.randrange(len(_steps(raw)))]
    return _line(raw)


def _swap_steps(raw: dict[str, Any], rng: random.Random) -> bytes:
    steps = _steps(raw)
    i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
    steps[i], steps[j] = steps[j], steps[i]
    return _line(raw)


def _repeat_step(raw: dict[str, Any], rng: random.Random) -> bytes:
    steps = _steps(raw)
    place = rng.randrange(len(steps))
    steps[place:place] = [steps[place]] * rng.choice((1, 2, 50, 300))
    return _line(raw)


def _step(of: Callable[[random.Random], list[Any]]) -> Mutation:
    def change(raw: dict[str, Any], rng: random.Random) -> bytes:
        steps = _steps(raw)
        steps.insert(rng.randrange(len(steps) + 1), of(rng))
        return _line(raw)

    return change


def _split(change: Callable[[list[Any], random.Random], None]) -> Mutation:
    def changed(raw: dict[str, Any], rng: random.Random) -> bytes:
        splits = [step for step in _steps(raw) if step[0] == "SP"]
        if splits:
            change(rng.choice(splits), rng)
        else:
            _steps(raw).insert(0, ["SP", 0, 0, 7, [3], 1])
        return _line(raw)

    return changed


def _set(place: int, value: Callable[[random.Random], Any]) -> Callable[..., None]:
    def change(step: list[Any], rng: random.Random) -> None:
        step[place] = value(rng)

    return change


def _index(rng: random.Random) -> int:
    return rng.choice((0, 1, 2, 3, 4, 5, 8, 99))


def _nested(rng: random.Random) -> Any:
    depth = rng.choice((2, 20, 300, 900))
    return json.loads("[" * depth + "]" * depth)


def _drop_key(raw: dict[str, Any], rng: random.Random) -> bytes:
    del raw[rng.choice(("i", "r"))]
    return _line(raw)


def _workload(raw: dict[str, Any], rng: random.Random) -> bytes:
    key = json.loads(raw["i"][0][0])
    key[rng.randrange(len(key))] = rng.choice((*ODD, *HUGE, 0, 1, 2, 7, "SAME"))
    raw["i"][0][0] = json.dumps(key)
    return _line(raw)


MUTATIONS: dict[str, Mutation] = {
    "a flipped bit": _text(_flip),
    "two flipped bits": _text(lambda line, rng: _flip(_flip(line, rng), rng)),
    "cut off": _text(lambda line, rng: line[: rng.randrange(1, len(line))]),
    "some bytes missing": _text(_without_some),
    "two lines in one": _text(lambda line, rng: line + line[: rng.randrange(len(line))]),
    "a key twice": _text(lambda line, rng: line.replace(b'"r":', b'"r": [[0.1], 0, 1, 1], "r":')),
    "an odd value": _put(lambda rng: rng.choice(ODD)),
    "an odd value in a step": _put(lambda rng: rng.choice(ODD), steps=True),
    "a zero": _put(lambda rng: 0, int, float),
    "a negative": _put(lambda rng: -rng.randrange(1, 100), int, float),
    "a huge number": _put(lambda rng: rng.choice(HUGE), int, float),
    "a huge index": _put(lambda rng: rng.choice(HUGE), int, steps=True),
    "another index": _put(_index, int, steps=True),
    "400 digits": _put(lambda rng: 10**400, int, float),
    "a nested list": _put(_nested),
    "a nested list in a step": _put(_nested, steps=True),
    "another text": _put(lambda rng: rng.choice(("lgcal", "shared", "SP", "CI", "CHW")), str),
    "another text in a step": _put(
        lambda rng: rng.choice(("lgcal", "shared", "SP", "CI", "PR", "auto_unroll_max_step$-1")),
        str,
        steps=True,
    ),
    "a step missing": _drop_step,
    "two steps swapped": _swap_steps,
    "a step repeated": _repeat_step,
    "computed anywhere": _step(lambda rng: ["CA", _index(rng), _index(rng), _index(rng)]),
    "a stage inlined": _step(lambda rng: [rng.choice(("CI", "CR")), _index(rng)]),
    "a cache": _step(
        lambda rng: rng.choice(
            (["CHW", _index(rng), "local"], ["CHR", _index(rng), "shared", [_index(rng)]])
        )
    ),
    "loops fused": _step(lambda rng: ["FU", _index(rng), [_index(rng), _index(rng)]]),
    "a reduction divided": _step(lambda rng: ["RF", _index(rng), _index(rng), _index(rng)]),
    "a split followed": _step(
        lambda rng: rng.choice(
            (
                ["FSP", _index(rng), 0, _index(rng), _index(rng)],
                ["FFSP", _index(rng), 0, [_index(rng), _index(rng)], _index(rng), _index(rng)],
            )
        )
    ),
    "another unroll depth": _step(
        lambda rng: ["PR", _index(rng), _index(rng), f"auto_unroll_max_step${rng.choice(HUGE)}"]
    ),
    "another extent": _split(_set(3, lambda rng: rng.choice((1, 3, 17, 4096, 2**31)))),
    "another length": _split(_set(4, lambda rng: [rng.choice((1, 3, 7, 1000)) for _ in range(3)])),
    "many lengths": _split(_set(4, lambda rng: [1] * rng.choice((10, 64, 65, 10_000)))),
    "large lengths": _split(_set(4, lambda rng: [2**31] * rng.choice((1, 2, 60, 20_000)))),
    "another flag": _split(_set(5, lambda rng: rng.choice((0, 1, 2, 99)))),
    "a key missing": _drop_key,
    "another workload": _workload,
}


def _trace(change: Callable[[list[Any], random.Random], None]) -> Mutation:
    """The only step of a record of MetaSchedule's: ``["MS", space, decisions]``."""

    def changed(raw: dict[str, Any], rng: random.Random) -> bytes:
        change(_steps(raw)[0], rng)
        return _line(raw)

    return changed


def _decision(value: Callable[[random.Random], Any]) -> Mutation:
    def change(step: list[Any], rng: random.Random) -> None:
        step[2][rng.randrange(len(step[2]))] = value(rng)

    return _trace(change)


OTHER_SPACES = ("nobody", "../nobody", "", "a" * 300, "%2e%2e", "NUL", 7, None, ["a"])

OF_TRACES: dict[str, Mutation] = MUTATIONS | {
    "another decision": _decision(lambda rng: rng.randrange(-3, 65)),
    "a huge decision": _decision(lambda rng: rng.choice(HUGE)),
    "an odd decision": _decision(lambda rng: rng.choice(ODD)),
    "another space": _trace(_set(1, lambda rng: rng.choice(OTHER_SPACES))),
    "a decision missing": _trace(lambda step, rng: step[2].pop(rng.randrange(len(step[2])))),
    "a decision more": _trace(lambda step, rng: step[2].insert(rng.randrange(4), 1)),
    "many decisions": _trace(lambda step, rng: step[2].extend([1] * rng.choice((1000, 100_000)))),
    "a trace of Ansor's": lambda raw, rng: _line(raw).replace(b'"MS"', b'"SP"'),
}


def damaged(
    lines: list[bytes], number: int, seed: int, of: Mapping[str, Mutation] = MUTATIONS
) -> Iterator[tuple[str, bytes]]:
    """(kind, line) of so many damaged lines, the kinds in turn."""
    rng = random.Random(seed)
    kinds = list(of)
    for count in range(number):
        kind = kinds[(seed + count) % len(kinds)]
        line = of[kind](json.loads(rng.choice(lines)), rng)
        yield kind, line.replace(b"\n", b" ")
