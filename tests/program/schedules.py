"""Ansor step lists made from tile lengths, as its sketches write them, and ways to draw tiles."""

from typing import Any

from hypothesis import strategies as st

Steps = list[list[Any]]


def product(values: list[int]) -> int:
    out = 1
    for value in values:
        out *= value
    return out


@st.composite
def factors(draw: st.DrawFn, extent: int, parts: int) -> list[int]:
    """``parts`` lengths whose product divides ``extent``."""
    out = []
    for _ in range(parts):
        divisors = [d for d in range(1, extent + 1) if extent % d == 0]
        out.append(draw(st.sampled_from(divisors)))
        extent //= out[-1]
    return draw(st.permutations(out))


def _fetch(stage: int, dims: int, vector: int, threads_from: list[int]) -> Steps:
    """Cooperative fetch: fuse all axes, split off the vector, then the threads."""
    return [
        ["FU", stage, list(range(dims))],
        ["SP", stage, 0, 0, [vector], 1],
        ["AN", stage, 1, 2],
        ["FFSP", stage, 0, threads_from, 1, 1],
        ["AN", stage, 1, 6],
    ]


def _bind(stage: int, axes: int) -> Steps:
    """Blocks, virtual threads, threads."""
    steps: Steps = []
    for level, mark in enumerate((5, 4, 6)):
        steps.append(["FU", stage, list(range(level, level + axes))])
        steps.append(["AN", stage, level, mark])
    return steps


def matmul_steps(
    i: list[int], j: list[int], k: list[int], *, vectors: tuple[int, int] = (1, 1), unroll: int = 0
) -> Steps:
    """``matmul_layer`` on a GPU: 4 tile lengths for i and j, 2 for k; vector lengths of B and A."""
    return [
        ["CHW", 2, "local"],
        ["SP", 2, 0, 0, i, 1],
        ["SP", 2, 5, 0, j, 1],
        ["SP", 2, 10, 0, k, 1],
        ["RE", 2, [0, 5, 1, 6, 2, 7, 10, 11, 3, 8, 12, 4, 9]],
        ["FSP", 3, 0, 1, 3],
        ["FSP", 3, 4, 2, 3],
        ["RE", 3, [0, 4, 1, 5, 2, 6, 3, 7]],
        ["CA", 2, 3, 5],
        ["CHR", 1, "shared", [2]],
        ["CA", 2, 3, 6],
        ["CHR", 0, "shared", [3]],
        ["CA", 1, 4, 6],
        *_bind(5, 2),
        *_fetch(3, 2, vectors[0], [2, 1]),
        *_fetch(1, 2, vectors[1], [2, 1]),
        ["PR", 4, 0, f"auto_unroll_max_step${unroll}"],
    ]


def conv_steps(
    space: list[list[int]], reduce: list[list[int]], *, vectors: tuple[int, int] = (1, 1)
) -> Steps:
    """``conv2d_layer`` on a GPU: 4 lengths for each of n, f, y, x; 2 for each of c, ry, rx."""
    steps: Steps = [["CHW", 3, "local"]]
    steps += [["SP", 3, 5 * a, 0, lengths, 1] for a, lengths in enumerate(space)]
    steps += [["SP", 3, 20 + 3 * r, 0, lengths, 1] for r, lengths in enumerate(reduce)]
    s, r = [0, 5, 10, 15], [20, 23, 26]
    order = [a + level for level in (0, 1, 2) for a in s]
    order += r + [a + 1 for a in r] + [a + 3 for a in s] + [a + 2 for a in r] + [a + 4 for a in s]
    steps.append(["RE", 3, order])
    steps += [["FSP", 4, 4 * a, a + 1, 3] for a in range(4)]
    steps.append(["RE", 4, [a + level for level in range(4) for a in (0, 4, 8, 12)]])
    steps += [["CA", 3, 4, 11], ["CHR", 2, "shared", [3]], ["CA", 3, 4, 14]]
    steps += [["CHR", 1, "shared", [4]], ["CA", 2, 5, 14], ["CI", 1]]
    threads = [4, 3, 2, 1]
    return [
        *steps,
        *_bind(6, 4),
        *_fetch(4, 4, vectors[0], threads),
        *_fetch(2, 4, vectors[1], threads),
    ]
