"""Recorded pools as token sequences: what the proposal model learns from and is judged on."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from pruner.arrays import Decisions, Floats
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.tasks import TaskKey
from pruner.models.analyzer.analyzer import SymbolAnalyzer, load_analyzer
from pruner.models.analyzer.quality import score_task, task_symbols
from pruner.models.proposals.decision_tokens import TokenSequences, TokenSpace, encode
from pruner.models.proposals.proposal_fit import TaskSequences
from pruner.models.proposals.proposal_model import ProposalModel
from pruner.paths import conf_folder
from pruner.program.device import load_device
from pruner.program.replay import definitions_of, space_of
from pruner.program.te.skeleton import group_programs
from pruner.program.tir.apply_trace import apply_groups
from pruner.program.tir.autocopy import layouts_permute
from pruner.program.tir.pipeline import waits_are_numbers
from pruner.program.tir.regions import buffer_scopes
from pruner.program.tir.trace import TraceProgram
from pruner.program.tir.verify import STATIC_BYTES, TirLimits, stages_cover, verify_gpu_code
from pruner.tune.spaces.batched.decisions import open_decisions
from pruner.tune.spaces.batched.token_reading import recorded_tokens

Shape = tuple[tuple[int, ...], ...]  # extents of the tiles of each design space


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPool:
    """The measured programs of a task whose design spaces have tokens.

    ``programs`` of the design spaces, and ``limits`` of the GPU; ``decisions`` int64 [N, d]:
    vectors, column 0 is the design space; ``latency_s`` [N]; ``draft`` [N]: scores of the analyzer;
    ``lost``: measured programs without tokens, or with a decision that the masks refuse.
    """

    key: TaskKey
    spaces: tuple[TokenSpace, ...]
    programs: tuple[TraceProgram, ...]
    limits: TirLimits | None
    decisions: Decisions
    sequences: tuple[TokenSequences, ...]
    latency_s: Floats
    draft: Floats
    lost: int

    def __len__(self) -> int:
        return len(self.latency_s)

    @property
    def shape(self) -> Shape:
        """The extents of all tiles, equal for equal work whatever its name."""
        every = {
            tuple(token.extent for token in space.tokens if hasattr(token, "extent"))
            for space in self.spaces
        }
        return tuple(sorted(every))

    @property
    def task(self) -> TaskSequences:
        """The pool for training."""
        latency_s = tuple(
            self.latency_s[self.decisions[:, 0] == n] for n in range(len(self.spaces))
        )
        return TaskSequences(parts=self.sequences, latency_s=latency_s)


def read_pools(root: RecordRoot, platform: str, most: int = 512) -> Iterator[TokenPool]:
    """Read all tasks of a platform that have tokens, at most `most` random programs of each."""
    analyzer = load_analyzer(conf_folder(), platform)
    assert isinstance(analyzer, SymbolAnalyzer)
    device = load_device(conf_folder() / "platform" / f"{platform}.yaml")
    known = definitions_of(root.path)
    with Quarantine() as quarantine:
        for records in root.read(quarantine, platform):
            measured = np.random.default_rng(0).permutation(np.flatnonzero(records.valid))[:most]
            found = records.select(np.sort(measured))
            if not len(found):
                continue
            groups = group_programs(found.steps)[0]
            tokens = recorded_tokens(groups, known.spaces, device)
            spaces, programs, sequences, places, vectors = [], [], [], [], []
            width = 1 + max(group.decisions.shape[1] for group in groups)
            for group, space in zip(groups, tokens, strict=True):
                if space is None or known.spaces is None:
                    continue
                encoded, legal = encode(space, group.decisions)
                rows = np.zeros((int(legal.sum()), width), np.int64)
                rows[:, 0] = len(spaces)
                rows[:, 1 : 1 + group.decisions.shape[1]] = group.decisions[legal]
                if len(rows):
                    spaces.append(space)
                    programs.append(space_of(known.spaces, group).program)
                    sequences.append(encoded)
                    places.append(group.rows[legal])
                    vectors.append(rows)
            if not spaces:
                continue
            order = np.concatenate(places)
            draft = score_task(task_symbols(found, analyzer, known), analyzer).score
            yield TokenPool(
                key=records.key, spaces=tuple(spaces), programs=tuple(programs),
                limits=_limits(records.target), decisions=np.concatenate(vectors),
                sequences=tuple(sequences), latency_s=found.latency_s[order], draft=draft[order],
                lost=len(found) - len(order),
            )  # fmt: skip


def _limits(target: str) -> TirLimits | None:
    """The limits of a GPU by a record's target; lanes have static shared memory alone."""
    values = json.loads(target) if target.startswith("{") else {}
    if "max_shared_memory_per_block" not in values:
        return None
    bytes_ = int(values["max_shared_memory_per_block"])
    static = min(bytes_, STATIC_BYTES) if values["kind"] == "cuda" else bytes_
    return TirLimits(
        shared_bytes=static, threads=int(values["max_threads_per_block"]), static_bytes=static
    )


def legal_shares(
    pool: TokenPool, model: ProposalModel, rng: np.random.Generator, num: int = 200
) -> Iterator[dict[str, Any]]:
    """Yield the shares of legal programs of `num` draws of each design space of a GPU's pool.

    ``divisors``: MetaSchedule's draws, whose factors divide the loops; ``masks``: the prior of the
    tokens, which also limits the threads; ``lm``: the model.
    """
    if pool.limits is None:
        return
    untrained = replace(model, network=copy.deepcopy(model.network))
    torch.nn.init.zeros_(untrained.network.score.weight)
    for number, (space, program) in enumerate(zip(pool.spaces, pool.programs, strict=True)):
        free = np.zeros((num, program.num_slots), np.int64)
        mine = pool.decisions[:, 0] == number
        example = pool.decisions[mine][0, 1 : 1 + program.num_slots]
        for decision in open_decisions(program, example).values():
            decision.sample(free, rng)
        draws = {
            "divisors": free,
            "masks": untrained.draw(space, num, rng)[0],
            "lm": model.draw(space, num, rng)[0],
        }
        for how, rows in draws.items():
            yield {"space": number, "draws": how, "legal": _legal(program, rows, pool.limits)}


def _legal(program: TraceProgram, rows: Decisions, limits: TirLimits) -> float:
    """The share of vectors that TVM would accept, as the batched spaces judge it."""
    legal = np.zeros(len(rows), bool)
    for some, tree in apply_groups(program, rows)[0]:
        buffer_scopes(tree)
        whole = layouts_permute(tree) & stages_cover(tree) & waits_are_numbers(tree)
        certain = np.broadcast_to(~np.asarray(tree.uncertain), tree.num_programs)
        legal[some] = certain & verify_gpu_code(tree, limits) & whole
    return float(legal.mean())
