"""Tiny design spaces as tokens: tiles and choices without a function behind them."""

import numpy as np

from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.program.tir.trace import Instruction, TraceProgram
from pruner.tune.spaces.batched.decisions import ChoiceDecision, TileDecision
from pruner.tune.spaces.batched.token_reading import tokens_of

STRUCTURE = ("Annotate", "meta_schedule.tiling_structure")


def tiny_space(tiles, choices=(), platform="cpu-avx2", structure="SSRS"):
    """Tokens of tiles (extent, parts, limit) and of choices with a number of candidates each."""
    decisions, instructions, slot = {}, [], 0
    instructions.append(Instruction(STRUCTURE[0], (None, structure), (STRUCTURE[1],), ()))
    for extent, parts, limit in tiles:
        decisions[slot] = TileDecision(slice(slot, slot + parts), extent, limit)
        instructions.append(Instruction("SamplePerfectTile", (), (parts, limit), (), slot))
        slot += parts
    for number in choices:
        decisions[slot] = ChoiceDecision(slot, np.full(number, 1 / number))
        candidates = tuple(16 * n for n in range(number))
        attrs = (candidates, tuple([1 / number] * number))
        instructions.append(Instruction("SampleCategorical", (), attrs, (), slot))
        slot += 1
    device = load_device(conf_folder() / "platform" / f"{platform}.yaml")
    program = TraceProgram(None, tuple(instructions), slot, device.kind == "gpu")
    return tokens_of(program, decisions, device, np.zeros(10, np.float32))


def factorisations(extent, parts, limit):
    """Every ordered factorisation whose last factor is at most `limit`, by trying all numbers."""
    if parts == 1:
        return [[extent]] if extent <= limit else []
    return [
        [first, *rest]
        for first in range(1, extent + 1)
        if extent % first == 0
        for rest in factorisations(extent // first, parts - 1, limit)
    ]
