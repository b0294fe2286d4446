"""Recurrent layers: torch's decompositions unroll them, step by step."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

# where an operator says how many layers, whether both directions, and whether the batch is first
_LAYERS = dict.fromkeys(
    (*(aten.lstm.input, aten.gru.input), *(aten.rnn_tanh.input, aten.rnn_relu.input)), (4, 7, 8)
)
_MOST = 512  # steps of all layers together: each takes 0.2 s to import and to lower


def check_lengths(program: Any) -> None:
    """Check that recurrences are short enough to be unrolled.

    Raises:
        AssertionError: one is too long, in the words of TVM's front end.
    """
    for node in program.graph.nodes:
        if node.target not in _LAYERS:
            continue
        layers, both, first = (node.args[place] for place in _LAYERS[node.target])
        length = node.args[0].meta["val"].shape[int(first)]
        steps = length * layers * (1 + both)
        if steps > _MOST:
            told = f"{node.target.__name__} ({steps} steps for at most {_MOST})"
            raise AssertionError(f"Unsupported function types ['{told}']")
