"""Evaluate the analyzer in torch, at tile sizes that are no integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pruner.models.analyzer.analyzer import SymbolAnalyzer
from pruner.program.nests import LoopNests
from pruner.program.relaxed import FormulaNode, Relaxed, in_order

_NAMES = {"power": "pow", "absolute": "abs", "round": "add"}


class RelaxedScores:
    """Scores of N programs as functions of their tile sizes, differentiable."""

    def __init__(self, score: FormulaNode, excess: Sequence[FormulaNode]) -> None:
        """Prepare the operations of `score` and of the amounts relative to their limits."""
        nodes = in_order([score, *excess])
        place = {node: number for number, node in enumerate(nodes)}
        self._steps: list[tuple[Callable[..., Tensor], list[int | Tensor]]] = []
        for node in nodes:
            inputs = [
                place[x] if isinstance(x, FormulaNode) else _tensor(x) for x in node.arguments
            ]
            self._steps.append((_function(node), inputs))
        self._score, self._excess = place[score], [place[node] for node in excess]

    def __call__(self, decisions: Tensor) -> tuple[Tensor, Tensor]:
        """Score decisions float64 [M, d] of the recorded batch: scores [N], and excess [N].

        The excess over the device's limits is the sum of squared logarithms of the relative
        amounts.
        """
        values: list[Tensor] = []
        for function, inputs in self._steps:
            found = [values[x] if isinstance(x, int) else x for x in inputs]
            values.append(function(decisions, found))
        score = values[self._score]
        beyond = torch.zeros_like(score)
        for place in self._excess:
            above = torch.log(torch.clamp(values[place], min=1.0)) ** 2
            beyond = beyond + above.reshape(-1, len(score)).sum(0)
        return score, beyond


def relaxed_scores(nests: LoopNests, analyzer: SymbolAnalyzer) -> RelaxedScores | None:
    """Record scores and limits as formulas; None where no tile size changes the score."""
    symbols = analyzer.symbols(nests)
    score = -np.log(analyzer.latency_s(symbols))
    shares = [amount / most for amount, most in analyzer.limits(symbols)]
    if not isinstance(score, Relaxed):
        return None
    return RelaxedScores(score.formula, [x.formula for x in shares if isinstance(x, Relaxed)])


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(np.asarray(value, np.float64))


def _function(node: FormulaNode) -> Callable[[Tensor, list[Tensor]], Tensor]:
    name, options = node.operation, node.options
    function = getattr(torch, _NAMES.get(name, name), None)
    match name:
        case "tile":
            rows, slot = torch.as_tensor(options[0]), options[1]
            return lambda decisions, _: decisions[rows, slot]
        case "select":
            index = _index(options)
            return lambda _, x: x[0].flip(0) if index is None else x[0][index]
        case "where":
            condition = torch.as_tensor(options)
            return lambda _, x: torch.where(condition, x[0], x[1])
        case "stack" | "concatenate":
            assert function is not None
            return lambda _, x: function(x, options)
        case "take_along_axis":
            axis, places = options[0], torch.as_tensor(options[1])
            return lambda _, x: torch.take_along_dim(x[0], places, axis)
        case "broadcast_to" | "sum" | "prod" | "amax" | "amin" | "cumprod":
            assert function is not None
            return lambda _, x: function(x[0], options)
    assert function is not None, name
    return lambda _, x: function(*x)


def _index(options: tuple[Any, ...]) -> Any:
    """Return an index for torch; None for the reversed order of the first axis."""
    if isinstance(options[0], slice) and options[0].step == -1:
        return None
    return tuple(torch.as_tensor(p) if isinstance(p, np.ndarray) else p for p in options)
