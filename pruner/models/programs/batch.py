"""The input of a cost model: programs with their statement rows.

Axes: `program` N programs, `row` all their statements (ragged: program 0's rows, then program 1's,
...), `column` statement features and then workload flags, `slot` dataflow rows, `flow` dataflow
columns, all as in :mod:`pruner.features.columns`. The optional fields are for models that read
schedules or platforms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pruner.features.batch import ProgramFeatures
from pruner.features.columns import DATAFLOW_COLUMNS, STATEMENT_COLUMNS, WORKLOAD_COLUMNS
from pruner.features.primitives import NUM_COLUMNS, NUM_STEPS, PrimitiveTokens

NUM_STATEMENT_FEATURES = len(STATEMENT_COLUMNS)
NUM_WORKLOAD_FLAGS = len(WORKLOAD_COLUMNS)
NUM_STATEMENT_COLUMNS = NUM_STATEMENT_FEATURES + NUM_WORKLOAD_FLAGS
NUM_DATAFLOW_COLUMNS = len(DATAFLOW_COLUMNS)
NUM_PLACES = NUM_STEPS * NUM_COLUMNS


class OnDevice:
    """Base of frozen dataclasses of tensors."""

    __slots__ = ()

    def to(self, device: Any, **kwargs: Any) -> Self:
        """Return the content on another device; Lightning calls this name."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        moved = {n: part.to(device, **kwargs) for n, part in parts.items() if hasattr(part, "to")}
        return replace(self, **moved)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTokens(OnDevice):
    """Tensors of :class:`pruner.features.primitives.PrimitiveTokens`; tables stay complete."""

    structure: Float[Tensor, "skeleton step column"]
    place: Int[Tensor, "skeleton decision"]
    skeleton: Int[Tensor, " program"]
    number: Float[Tensor, "program decision"]

    @staticmethod
    def of(tokens: PrimitiveTokens) -> "ProgramTokens":
        """The same tokens as tensors."""
        names = [f.name for f in fields(ProgramTokens)]
        return ProgramTokens(**{n: torch.from_numpy(getattr(tokens, n)) for n in names})

    def arrays(self) -> PrimitiveTokens:
        """The same tokens as arrays."""
        return PrimitiveTokens(**{f.name: getattr(self, f.name).numpy() for f in fields(self)})

    def take(self, index: Int[Tensor, " program"] | slice) -> "ProgramTokens":
        """The given programs."""
        return replace(self, skeleton=self.skeleton[index], number=self.number[index])

    def place_means(
        self, group: Int[Tensor, " program"], num_groups: int
    ) -> Float[Tensor, "group place"]:
        """Mean decision [group, step x column] by group of programs, zero without any."""
        place = self.place[self.skeleton]
        there = place >= 0
        # One index for (group, place), so that one scatter gives all means.
        flat = (group[:, None] * NUM_PLACES + place)[there]
        total = self.number.new_zeros(num_groups * NUM_PLACES)
        total.index_add_(0, flat, self.number[there])
        count = torch.bincount(flat, minlength=len(total)).clamp(min=1)
        return (total / count).view(num_groups, NUM_PLACES)

    def minus(
        self, means: Float[Tensor, "group place"], group: Int[Tensor, " program"]
    ) -> "ProgramTokens":
        """The same programs with their groups' means subtracted from the decisions."""
        place = self.place[self.skeleton]
        # Decisions without a place (-1) read place 0 and are masked.
        mean = means[group[:, None], place.clamp(min=0)] * (place >= 0)
        return replace(self, number=self.number - mean)

    def dense(
        self,
    ) -> tuple[Float[Tensor, "program step column"], Bool[Tensor, "program step"]]:
        """Token blocks, cut to the longest program, with a mask of steps."""
        tokens = self.structure[self.skeleton].flatten(1)
        place = self.place[self.skeleton]
        # Decisions without a place go to an additional column, which is then dropped.
        spare = torch.cat([tokens, tokens.new_zeros(len(tokens), 1)], dim=1)
        spare.scatter_(1, torch.where(place < 0, tokens.shape[1], place), self.number)
        blocks = spare[:, :-1].view(-1, NUM_STEPS, NUM_COLUMNS)
        # Every real step has a token of its kind; padding is zero throughout.
        real = (self.structure != 0).any(dim=2)[self.skeleton]
        longest = max(1, int(real.sum(dim=1).max())) if len(real) else 1
        return blocks[:, :longest], real[:, :longest]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramBatch(OnDevice):
    """Programs without labels; rows of a program are neighbours, in order.

    `platform` [program] indexes the names in `platforms`; the name of an unknown platform is "".
    `tokens` are None where the programs did not come from schedule primitives, `draft` is None
    unless the analyzer's columns were requested (:mod:`pruner.models.analyzer.columns`).
    """

    statement: Float[Tensor, "row column"]
    program: Int[Tensor, " row"]  # which program a row belongs to, ascending
    dataflow: Float[Tensor, "program slot flow"]
    platform: Int[Tensor, " program"] | None = None
    platforms: tuple[str, ...] = ()
    tokens: ProgramTokens | None = None
    draft: Float[Tensor, "program draft"] | None = None

    @staticmethod
    def of(features: ProgramFeatures, platform: str = "") -> "ProgramBatch":
        """Valid programs of one task of a platform."""
        counts = torch.from_numpy(features.num_statements)
        rows = torch.from_numpy(features.statement)
        flags = torch.tensor(features.workload).expand(len(rows), -1)
        return ProgramBatch(
            statement=torch.cat([rows, flags], dim=1),
            program=torch.repeat_interleave(torch.arange(len(counts)), counts),
            dataflow=torch.from_numpy(features.dataflow),
            platform=torch.zeros(len(counts), dtype=torch.long),
            platforms=(platform,),
            tokens=None if features.tokens is None else ProgramTokens.of(features.tokens),
            draft=None if features.extra is None else torch.from_numpy(features.extra),
        )

    @property
    def num_programs(self) -> int:
        """N, counting programs without any statement row."""
        return self.dataflow.shape[0]

    def split(self, size: int) -> Iterator["ProgramBatch"]:
        """Parts of at most `size` programs, in order."""
        for start in range(0, self.num_programs, size):
            part = slice(start, start + size)
            end = min(start + size, self.num_programs)
            # Rows are in program order, so a part's rows are one slice, found without a scan.
            first, last = torch.searchsorted(self.program, torch.tensor([start, end])).tolist()
            yield replace(
                self,
                statement=self.statement[first:last],
                program=self.program[first:last] - start,
                dataflow=self.dataflow[part],
                platform=None if self.platform is None else self.platform[part],
                tokens=None if self.tokens is None else self.tokens.take(part),
                draft=None if self.draft is None else self.draft[part],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledBatch(OnDevice):
    """Programs with labels; `task` numbers the tasks, `index` the store's programs.

    In a batch that several processes share, `programs` are the part of this process, which begins
    with number `first` of the batch; all other fields cover the whole batch.
    """

    programs: ProgramBatch
    label: Float[Tensor, " program"]  # best latency of the task / latency, in (0, 1]
    task: Int[Tensor, " program"]
    index: Int[Tensor, " program"]
    first: int = 0
