"""Read a batched design space as decision tokens for a proposal model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float32

from pruner.features.device_vector import hardware_features
from pruner.models.proposals.decision_tokens import (
    LOG_SCALE,
    ChoiceToken,
    Columns,
    FactorToken,
    LocationToken,
    ThreadBound,
    Token,
    TokenSpace,
    log_ways,
    token_columns,
)
from pruner.program.device import Device
from pruner.program.tir.trace import TraceProgram
from pruner.search.space import divisors
from pruner.tune.spaces.batched.decisions import (
    ChoiceDecision,
    Decision,
    LocationDecision,
    TileDecision,
    prime_powers,
)
from pruner.tune.spaces.batched.tiling import ThreadRange, structures_of, thread_ranges

# Instructions whose numbers describe a space: written out, checkpoints depend on this order.
COUNTED = (
    "SamplePerfectTile", "SamplePartitionedTile", "SampleCategorical", "SampleComputeLocation",
    "CacheRead", "CacheWrite", "RFactor", "ComputeAt", "ReverseComputeAt", "ComputeInline",
    "ReverseComputeInline", "Blockize", "Tensorize", "Bind", "Fuse", "Annotate",
)  # fmt: skip
DEVICE_SCALE = 32.0  # log2 of a device's constants reaches 50


def tokens_of(
    program: TraceProgram,
    decisions: Mapping[int, Decision],
    device: Device,
    flags: Float32[np.ndarray, " flag"],
) -> TokenSpace:
    """Make the tokens of a design space from decisions by first slot, and flags."""
    structures, bounds = structures_of(program), thread_ranges(program.instructions)
    start = np.zeros(program.num_slots, np.int64)
    tokens: list[Token] = []
    kinds: set[str] = set()
    spatial = [s for s, d in decisions.items() if _role(d, structures.get(s, "")) == "S"]
    reduction = [s for s, d in decisions.items() if _role(d, structures.get(s, "")) == "R"]
    for place, (slot, decision) in enumerate(decisions.items()):
        about = {"place": place / LOG_SCALE}
        if isinstance(decision, TileDecision):
            structure = structures.get(slot, "")
            role = _role(decision, structure)
            group = {"S": spatial, "R": reduction}.get(role, [slot])
            about["is_spatial"], about["is_reduction"] = role == "S", role == "R"
            about["is_first_of_kind"] = slot == group[0]
            about["is_last_of_kind"] = slot == group[-1]
            earlier = [decisions[other] for other in group[: group.index(slot)]]
            tokens += _factors(decision, earlier, bounds, about)
            if decision.slots.stop - slot == 1:
                start[slot] = decision.extent
            kinds.add(f"tile {structure or 'alone'} {decision.slots.stop - slot}")
        elif isinstance(decision, ChoiceDecision):
            tokens.append(_choice(program, decision, about))
            kinds.add("choice")
        elif isinstance(decision, LocationDecision):
            columns = token_columns(is_location=1, **about)
            tokens.append(LocationToken(slot=slot, offered=decision.options, columns=columns))
            kinds.add("location")
    counts = Counter(i.kind for i in program.instructions)
    counted = np.log1p([counts[name] for name in COUNTED]).astype(np.float32)
    return TokenSpace(
        tokens=tuple(tokens),
        start=start,
        columns=np.concatenate([hardware_features(device) / DEVICE_SCALE, flags, counted / 2]),
        kind=f"{device.kind}: {', '.join(sorted(kinds))}",
    )


def _role(decision: Decision, structure: str) -> str:
    """Return S for loops of the result, R for reductions, else nothing."""
    if not isinstance(decision, TileDecision):
        return ""
    parts = decision.slots.stop - decision.slots.start
    return next((role for role in "SR" if parts == structure.count(role)), "")


def _factors(
    tile: TileDecision,
    earlier: Sequence[Decision],
    bounds: list[ThreadRange],
    about: Mapping[str, float],
) -> list[FactorToken]:
    """Make tokens of all factors but the outermost, innermost first, after ``earlier`` tiles."""
    first, last = tile.slots.start, tile.slots.stop - 1
    values = divisors(tile.extent)
    out = []
    for slot in range(last, first, -1):
        threads = _bound(slot, bounds)
        limit = tile.limit if slot == last else tile.extent
        columns = token_columns(
            **about,
            is_factor=1,
            is_thread=threads is not None,
            log2_extent=np.log2(tile.extent) / LOG_SCALE,
            log2_even_part=np.log2(tile.extent & -tile.extent) / LOG_SCALE,
            log2_limit=np.log2(min(limit, tile.extent)) / LOG_SCALE,
            log2_options=np.log2(len(values)) / LOG_SCALE,
            **{f"level_{min(last - slot, 3)}": 1, f"parts_{min(max(last - first + 1, 2), 5)}": 1},
        )
        out.append(
            FactorToken(
                slot=slot,
                inner=tuple(range(slot + 1, last + 1)),
                peers=tuple(
                    peer
                    for other in earlier
                    if isinstance(other, TileDecision)
                    for peer in range(other.slots.stop - 1 - (last - slot), other.slots.stop)
                ),
                extent=tile.extent,
                values=values,
                log_ways=log_ways(values, slot - first, prime_powers),
                limit=limit,
                multiple=tile.divisor if slot == first + tile.inside else 1,
                threads=threads,
                rest=first if slot == first + 1 else -1,
                columns=columns,
            )
        )
    return out


def _bound(slot: int, bounds: list[ThreadRange]) -> ThreadBound | None:
    """Return the bound on a factor that counts threads."""
    for one in bounds:
        if slot in one.slots:
            before = tuple(other for other in one.slots if other < slot)
            return ThreadBound(
                slots=before, lanes=one.lanes, low=one.low, high=one.high,
                closes=slot == max(one.slots),
            )  # fmt: skip
    return None


def _choice(
    program: TraceProgram, decision: ChoiceDecision, about: Mapping[str, float]
) -> ChoiceToken:
    (sample,) = (i for i in program.instructions if i.slot == decision.slot)
    candidates = np.array([float(value) for value in sample.attrs[0]])
    columns: Columns = token_columns(
        **about,
        is_choice=1,
        log2_options=np.log2(len(candidates)) / LOG_SCALE,
        log2_largest=np.log2(1 + np.abs(candidates).max()) / LOG_SCALE,
    )
    with np.errstate(divide="ignore"):  # a candidate of probability zero is never drawn
        log_probs = np.log(decision.probs / decision.probs.sum())
    return ChoiceToken(
        slot=decision.slot, candidates=candidates, log_probs=log_probs, columns=columns
    )
